"""Softmax over the last axis with masked entries, and the soft cap of its input."""

import torch
from torch import Tensor

from reference_numpy import checks

from . import precision

__all__ = ["soft_cap", "softmax"]


def softmax(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the unmasked entries of the last axis.

    Fully masked rows are 0 (EMPTY). Uses `Tensor.softmax`, in float32 for half-precision dtypes,
    and zeroes the masked entries.
    """
    x = precision.upcast_half(logits)
    if mask is None:
        return x.softmax(dim=-1).to(logits.dtype)
    checks.check_mask(mask.shape, precision.dtype_name(mask.dtype), logits.shape, axes="the logits")
    # The lowest finite number, not -inf, keeps fully masked rows finite, forward and backward,
    # until they are zeroed.
    probability = x.masked_fill(~mask, torch.finfo(x.dtype).min).softmax(dim=-1)
    return probability.masked_fill(~mask, 0).to(logits.dtype)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """`y = cap tanh(x / cap)`, elementwise (SOFTCAP); in float32 for half-precision dtypes."""
    if not cap > 0:
        raise ValueError(f"cap must be greater than 0; got {cap}")
    return (cap * (precision.upcast_half(x) / cap).tanh()).to(x.dtype)
