"""Dtypes: half-precision dtypes (float16, bfloat16) compute in float32 where it matters."""

import torch
from torch import Tensor

__all__ = ["autocasts", "dtype_name", "is_half", "upcast_half"]


def autocasts(x: Tensor) -> bool:
    """Whether `torch.autocast` chooses the dtypes of operations on this tensor."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the dtype's NumPy name, for the shared checks."""
    return str(dtype).removeprefix("torch.")


def is_half(x: Tensor) -> bool:
    """Returns True for the 16-bit floating dtypes, float16 and bfloat16."""
    return x.dtype.itemsize == 2


def upcast_half(x: Tensor) -> Tensor:
    """Returns a half-precision tensor as float32, and any other tensor unchanged."""
    return x.float() if is_half(x) else x
