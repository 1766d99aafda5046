"""Inverted dropout (DROPOUT)."""

from typing import Any

import numpy as np

from . import arithmetic, checks
from .arrays import Array, Gradients, Keep, Mask

__all__ = ["dropout", "dropout_vjp"]


def dropout(x: Array, keep: Mask, rate: float) -> Array:
    """`y = x / (1 - rate)` where `keep` is True, otherwise 0; without `keep` (evaluation), x.

    keep: boolean, True = keep, broadcastable to x; each entry is True with probability 1 - rate, so
    the expectation of y is x. Half-precision dtypes divide in float32 and round once.
    Raises ValueError if the rate is outside [0, 1) or the mask has another dtype or shape.
    Source: Srivastava et al. 2014, section 10.
    """
    if keep is None:
        return x
    checks.check_keep(keep.shape, str(keep.dtype), x.shape, rate)
    wide = arithmetic.upcast_half(x)
    dropped = np.where(keep, wide / wide.dtype.type(1 - rate), wide.dtype.type(0))
    return dropped.astype(x.dtype, copy=False)


def dropout_vjp(x: Array, keep: Mask, rate: float, *, cotangent: Array) -> Gradients:
    """`dx = g / (1 - rate)` where kept, otherwise 0, since dropout is linear in x."""
    return {"x": dropout(cotangent, keep, rate)}


def part(keep: Keep, *names: str) -> Any:
    """Returns the keep masks below these names, or None if there are none."""
    for name in names:
        keep = (keep or {}).get(name)
    return keep
