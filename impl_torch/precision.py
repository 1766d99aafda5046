"""The dtypes in which the port computes."""

import torch
from torch import Tensor

__all__ = ["autocasts", "dtype_name", "is_half", "upcast_half"]


def autocasts(x: Tensor) -> bool:
    """Whether `torch.autocast` chooses the dtypes of operations on the tensor."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def dtype_name(dtype: torch.dtype) -> str:
    """Spells the dtype as NumPy does, for the shared checks."""
    return str(dtype).removeprefix("torch.")


def is_half(x: Tensor) -> bool:
    """Whether the tensor's dtype is a 16-bit one, float16 or bfloat16."""
    return x.dtype.itemsize == 2


def upcast_half(x: Tensor) -> Tensor:
    """Returns a half-precision tensor in float32, any other tensor itself."""
    return x.float() if is_half(x) else x
