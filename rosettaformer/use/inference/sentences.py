"""Computes sentence embeddings: one vector per text, pooled from the vectors of its tokens."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference_numpy import arithmetic
from reference_numpy.fields import is_integer

from ...common.reading import read_json, read_object
from .models import Model
from .tokenizer import Tokenizer

_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}


@dataclass(frozen=True)
class Recipe:
    """How to pool: by the mean of all tokens or by the first token.

    normalised: whether vectors have length 1. positions: the length to cut texts to; 0 for no
    limit.
    """

    pooling: str = "mean"
    normalised: bool = True
    positions: int = 0


def recipe(folder: Path) -> Recipe:
    """Reads a folder's sentence-transformers files; default: the mean, normalized.

    Raises ValueError on invalid files and on unsupported pooling.
    """
    limits = folder / "sentence_bert_config.json"
    cut = read_object(limits, optional=True).get("max_seq_length") or 0
    if not is_integer(cut) or cut < 0:
        raise ValueError(f"max_seq_length of {limits} must be an integer of at least 1; got {cut!r:.100}")
    kinds = _modules(folder / "modules.json")
    if kinds is None:
        return Recipe(positions=cut)
    said = read_object(folder / kinds["Pooling"] / "config.json", optional=True) if "Pooling" in kinds else {}
    modes = [name for name, value in said.items() if name.startswith("pooling_mode_") and value is True]
    if "Pooling" in kinds and (len(modes) != 1 or modes[0] not in _FLAGS):
        raise ValueError(f"the pooling of {folder} must be one of {', '.join(_FLAGS)}; got {', '.join(modes) or 'none'}")
    if others := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise ValueError(f"the modules of {folder} must be only Transformer, Pooling and Normalize; got {', '.join(others)}")
    return Recipe(_FLAGS[modes[0]] if modes else "mean", "Normalize" in kinds, cut)


def _modules(path: Path) -> dict[str, str] | None:
    """Returns the folder of each module in modules.json; None if there is no such file."""
    if not os.path.lexists(path):
        return None
    parts = read_json(path)
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{path} must be a JSON list of modules; got {type(parts).__name__}")
    kinds = {str(part.get("type", "")).rpartition(".")[2]: str(part.get("path", "")) for part in parts}
    if outside := [place for place in kinds.values() if Path(place).is_absolute() or ".." in Path(place).parts]:
        raise ValueError(f"the modules of {path} must be in the same folder; got {outside[0]!r:.100}")
    return kinds


def embed(model: Model, tokenizer: Tokenizer, how: Recipe, texts: Sequence[str]) -> np.ndarray:
    """Returns one vector `b d` per text of a batch, at least float32.

    `mean_s x` over the real tokens, or `x_0`; divided by its length if normalized. Texts are cut to
    the positions.
    """
    token_bs, mask_bs, segment_bs = tokenizer.read(texts, model.config, how.positions)
    x_bsd = arithmetic.upcast_half(model.encode(token_bs, mask_bs, segment_bs))
    if how.pooling == "first":
        y_bd = x_bsd[:, 0]
    else:
        y_bd = np.einsum("bsd,bs->bd", x_bsd, mask_bs.astype(x_bsd.dtype)) / mask_bs.sum(axis=1, keepdims=True).clip(1).astype(x_bsd.dtype)
    return y_bd / np.linalg.norm(y_bd, axis=1, keepdims=True).clip(1e-12) if how.normalised else y_bd
