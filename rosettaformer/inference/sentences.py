"""Sentence embeddings: one vector for each text, of the vectors of its tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from ..reading import read_json
from .models import Model
from .tokenizer import Tokenizer

__all__ = ["POOLINGS", "Recipe", "embed", "recipe"]

POOLINGS = ("mean", "first")
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}


@dataclass(frozen=True)
class Recipe:
    """pooling: the mean of a text's tokens, or its first one. normalised: whether a vector has length 1. positions: 0, or what texts are
    cut to.
    """

    pooling: str = "mean"
    normalised: bool = True
    positions: int = 0


def recipe(folder: Path) -> Recipe:
    """What the files of sentence-transformers in the folder say; without them the mean, of length 1.

    Raises ValueError on files that are no JSON objects, and on a pooling that is not supported.
    """
    modules, limits = folder / "modules.json", _object(folder / "sentence_bert_config.json")
    positions = limits.get("max_seq_length")
    cut = positions if type(positions) is int and positions > 0 else 0
    if not modules.is_file():
        return Recipe(positions=cut)
    parts = [part for part in read_json(modules) if isinstance(part, Mapping)]
    kinds = {str(part.get("type", "")).rpartition(".")[2]: str(part.get("path", "")) for part in parts}
    said = _object(folder / kinds.get("Pooling", "") / "config.json") if "Pooling" in kinds else {}
    modes = [name for name, value in said.items() if name.startswith("pooling_mode_") and value is True]
    if "Pooling" in kinds and (len(modes) != 1 or modes[0] not in _FLAGS):
        raise ValueError(f"the pooling of {folder} must be one of {', '.join(_FLAGS)}; got {', '.join(modes) or 'none'}")
    if others := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise ValueError(f"the modules of {folder} must be a Transformer, a Pooling and a Normalize; got {', '.join(others)} too")
    return Recipe(_FLAGS[modes[0]] if modes else "mean", "Normalize" in kinds, cut)


def embed(model: Model, tokenizer: Tokenizer, how: Recipe, texts: Sequence[str]) -> np.ndarray:
    """One vector `b d` for each text, read in one batch: cut to the positions, padded to the longest; at least float32.

    `mean_s x` over the real tokens, or `x_0`; then, where it is normalised, divided by its length.
    """
    token_bs, mask_bs, segment_bs = tokenizer.read(texts, model.config, how.positions)
    x_bsd = arithmetic.upcast_half(model.encode(token_bs, mask_bs, segment_bs))
    if how.pooling == "first":
        y_bd = x_bsd[:, 0]
    else:
        y_bd = np.einsum("bsd,bs->bd", x_bsd, mask_bs.astype(x_bsd.dtype)) / mask_bs.sum(axis=1, keepdims=True).clip(1).astype(x_bsd.dtype)
    return y_bd / np.linalg.norm(y_bd, axis=1, keepdims=True).clip(1e-12) if how.normalised else y_bd


def _object(path: Path) -> Mapping[str, Any]:
    """What a file of JSON holds; nothing where there is none."""
    value = read_json(path) if path.is_file() else {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} must hold a JSON object; got {type(value).__name__}")
    return value
