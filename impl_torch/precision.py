"""The dtypes in which the port computes."""

import torch
from torch import Tensor

__all__ = ["autocasts", "dtype_name", "upcast_half"]


def autocasts(x: Tensor) -> bool:
    """Whether `torch.autocast` chooses the dtypes of operations on the tensor."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def dtype_name(dtype: torch.dtype) -> str:
    """Spells the dtype as NumPy does, for the shared checks."""
    return str(dtype).removeprefix("torch.")


def upcast_half(x: Tensor) -> Tensor:
    """Returns a half-precision tensor in float32, any other tensor itself."""
    return x.float() if x.dtype.itemsize == 2 else x
