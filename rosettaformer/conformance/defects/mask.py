"""Defects of the causal mask."""

from typing import Any

import numpy as np

from reference_numpy import mask

from .defect import Defect

__all__ = ["DEFECTS"]

_causal = mask.causal_mask


def _off_by_one(target_length: int, source_length: int) -> np.ndarray:
    offset = source_length - target_length
    return (np.arange(source_length) < np.arange(target_length)[:, None] + offset)[None, None]


def _inverted(target_length: int, source_length: int) -> np.ndarray:
    return ~_causal(target_length, source_length)


def _top_left(target_length: int, source_length: int) -> np.ndarray:
    return (np.arange(source_length) <= np.arange(target_length)[:, None])[None, None]


def _defect(id_: str, title: str, evidence: str, function: Any) -> Defect:
    return Defect(id_, title, "causal_mask", evidence, {"mask.causal_mask": function})


DEFECTS = (
    _defect("CAU1", "the diagonal is off by one: a query cannot see itself", "pbloem/former#10", _off_by_one),
    _defect("CAU2", "the look-ahead mask is inverted", "guide", _inverted),
    _defect("CAU3", "the mask is aligned top-left instead of bottom-right", "pytorch#108108, mlx#2967, flash-attention#517", _top_left),
)
