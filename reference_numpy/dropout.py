"""Inverted dropout (DROPOUT)."""

import numpy as np

from . import arithmetic, checks

__all__ = ["dropout", "dropout_vjp"]


def dropout(x: np.ndarray, keep: np.ndarray | None, rate: float) -> np.ndarray:
    """`y = x / (1 - rate)` where keep, otherwise 0; the identity without a keep mask, which is evaluation.

    keep: boolean, True = keep, broadcastable to x; each entry True with probability 1 - rate, so that the expectation of y is x.
    Half-precision dtypes divide in float32 and round once.
    Raises ValueError on a rate outside [0, 1) and on a mask of another dtype or shape. Source: Srivastava et al. 2014, section 10.
    """
    if keep is None:
        return x
    checks.check_keep(keep.shape, str(keep.dtype), x.shape, rate)
    wide = arithmetic.upcast_half(x)
    return np.where(keep, wide / wide.dtype.type(1 - rate), wide.dtype.type(0)).astype(
        x.dtype, copy=False
    )


def dropout_vjp(
    x: np.ndarray, keep: np.ndarray | None, rate: float, *, cotangent: np.ndarray
) -> dict[str, np.ndarray]:
    """`dx = g / (1 - rate)` where kept, otherwise 0: dropout is linear, so its gradient is dropout itself, with the same mask."""
    return {"x": dropout(cotangent, keep, rate)}
