"""Names of dtypes, and the precision in which half types compute."""

import torch
from torch import Tensor

__all__ = ["name", "widen"]


def name(dtype: torch.dtype) -> str:
    """The dtype's name as NumPy spells it, for the shared checks."""
    return str(dtype).removeprefix("torch.")


def widen(x: Tensor) -> Tensor:
    """float32 for half types, otherwise the tensor itself."""
    return x.float() if x.dtype.itemsize == 2 else x
