"""Cases made of a user's own weights."""

from pathlib import Path

import numpy as np

from reference_numpy import TransformerConfig

from ...checkpoints.canonical import load
from ..case import Case
from .build import ragged, rng

__all__ = ["checkpoint_cases"]

B, S, T = 4, 19, 17


def checkpoint_cases(path: Path) -> list[Case]:
    """The whole model on the weights of a canonical checkpoint: full rows, and ragged ones where the config has a padding id.

    The inputs are the same for every checkpoint of the same vocabularies. A config without a decoder is checked as its encoder.
    Raises ValueError listing everything that is wrong with the file.
    """
    checkpoint = load(path)
    config, tensors = checkpoint.config, checkpoint.parameters
    if not config.decoder_layers:
        x = rng("checkpoint vectors").standard_normal((B, S, config.model_width))
        encoder = {name.removeprefix("encoder."): value for name, value in tensors.items() if name.startswith("encoder.")}
        return [Case("checkpoint", "encoder", config, {"x_bsd": x}, encoder)]
    masks = {"checkpoint": (np.ones((B, S), bool), np.ones((B, T), bool))}
    if config.padding_id is not None:
        masks["checkpoint_ragged"] = (ragged(B, S), ragged(B, T)[::-1])
    return [Case(name, "transformer", config, _tokens(config, *pair), tensors) for name, pair in masks.items()]


def _tokens(config: TransformerConfig, source_mask: np.ndarray, target_mask: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "source": _ids("source", config.source_vocabulary, config.padding_id, source_mask),
        "target": _ids("target", config.target_vocabulary, config.padding_id, target_mask),
    }


def _ids(name: str, vocabulary: int, padding_id: int | None, mask: np.ndarray) -> np.ndarray:
    ids = rng(f"checkpoint {name}").integers(0, vocabulary, mask.shape)
    if padding_id is None:
        return ids
    return np.where(mask, np.where(ids == padding_id, (padding_id + 1) % vocabulary, ids), padding_id)
