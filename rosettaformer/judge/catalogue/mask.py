"""Known bugs of the padding mask and the causal mask."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .alteration import Altered, Variants, on_result
from .fills import uniform_when_empty


def _diagonal(offset: int) -> Callable:
    """Moves the causal mask's diagonal to the right: `j <= i + (s - t) + offset`."""
    return lambda original, target_length, source_length: np.tri(
        target_length, source_length, source_length - target_length + offset, dtype=bool
    )[None, None]


def _from_diagonal(original: Callable, target_length: int, source_length: int) -> np.ndarray:
    return ~np.tri(target_length, source_length, source_length - target_length - 1, dtype=bool)[None, None]


def _either(original: Callable, mask_bhts: Any, other_bhts: Any) -> Any:
    return original(mask_bhts, other_bhts) if mask_bhts is None or other_bhts is None else mask_bhts | other_bhts


def top_left(original: Callable, target_length: int, source_length: int) -> np.ndarray:
    """Aligns the first query of the causal mask with the first key."""
    longest = max(target_length, source_length)
    return original(longest, longest)[:, :, :target_length, :source_length]


ALTERED: Altered = {
    "ATT9": {"mask.padding_mask": on_result(np.ones_like)},
    "CAU1": {"mask.causal_mask": _diagonal(-1)},
    "CAU8": {"mask.causal_mask": _diagonal(1)},
    "CAU2": {"mask.causal_mask": on_result(np.logical_not)},
    "CAU3": {"mask.causal_mask": top_left},
    "CAU6": {"mask.causal_mask": on_result(np.ones_like)},
    "ATT22": {"mask.combine_masks": _either},
}
VARIANTS: Variants = {
    "CAU1": {
        "causal mask off by one, and a query that may attend to nothing attends to all keys": {
            "mask.causal_mask": _diagonal(-1),
            "softmax.softmax": uniform_when_empty,
        }
    },
    "CAU3": {
        "causal mask aligned top-left, and a query that may attend to nothing attends to all keys": {
            "mask.causal_mask": top_left,
            "softmax.softmax": uniform_when_empty,
        }
    },
    "CAU2": {
        "the causal mask is inverted: a query sees itself and the future": {"mask.causal_mask": _from_diagonal},
        "the causal mask is inverted, and a query that may attend to nothing attends to all keys": {
            "mask.causal_mask": on_result(np.logical_not),
            "softmax.softmax": uniform_when_empty,
        },
    },
}
