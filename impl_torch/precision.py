"""Names of dtypes, and the precision in which half types compute."""

import torch
from torch import Tensor

__all__ = ["autocasts", "name", "widen"]


def autocasts(x: Tensor) -> bool:
    """Whether `torch.autocast` chooses the dtypes of what is computed from the tensor."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def name(dtype: torch.dtype) -> str:
    """The dtype's name as NumPy spells it, for the shared checks."""
    return str(dtype).removeprefix("torch.")


def widen(x: Tensor) -> Tensor:
    """float32 for half types, otherwise the tensor itself."""
    return x.float() if x.dtype.itemsize == 2 else x
