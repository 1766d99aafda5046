"""The learning rate schedule."""

import numpy as np
from numpy.typing import DTypeLike

from .arrays import Array

__all__ = ["noam"]


def noam(step: int | Array, width: int, warmup: int, dtype: DTypeLike = np.float64) -> Array:
    """`rate(n) = d^-1/2 min(n^-1/2, n warmup^-3/2)` (NOAM).

    Rises linearly until n = warmup, then falls with the inverse root of n. step: integers n,
    counted from 1. width: d. Computed in float64, then cast to dtype. Raises ValueError if step,
    width or warmup is less than 1. Source: Vaswani et al. 2017, eq. 3.
    """
    n = np.asarray(step)
    for name, value in (("step", n), ("width", np.asarray(width)), ("warmup", np.asarray(warmup))):
        if value.dtype.kind not in "iu" or (value < 1).any():
            raise ValueError(f"{name} must be an integer of at least 1; got {value.tolist()}")
    n = n.astype(np.float64)
    return np.asarray(width**-0.5 * np.minimum(n**-0.5, n * warmup**-1.5)).astype(dtype)
