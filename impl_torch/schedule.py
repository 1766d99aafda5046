"""The learning rate schedule."""

import torch
from torch import Tensor

from . import framework

__all__ = ["noam"]


def noam(step: int | Tensor, width: int, warmup: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """`rate(n) = d^-1/2 min(n^-1/2, n warmup^-3/2)` (NOAM).

    n is the step, counted from 1. Computed in float64 on the device of the step, then cast. A step
    without a value (`framework.has_values`) is not checked.
    """
    n = torch.as_tensor(step)
    for name, value in (("width", width), ("warmup", warmup)):
        if isinstance(value, float) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1; got {value}")
    if n.is_floating_point() or (framework.has_values(n) and (n < 1).any()):
        raise ValueError(f"step must be an integer of at least 1; got {n.tolist()}")
    n = n.double()
    return (width**-0.5 * torch.minimum(n**-0.5, n * warmup**-1.5)).to(dtype)
