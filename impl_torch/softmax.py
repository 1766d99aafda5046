"""Softmax over the last axis, with masked entries, and the soft cap of what it is given."""

import torch
from torch import Tensor

from reference_numpy import checks

from . import precision

__all__ = ["soft_cap", "softmax"]


def softmax(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` without masked entries; a row without any
    entry is 0 (EMPTY).

    It is `Tensor.softmax`, in float32 for half-precision dtypes, with the masked entries zeroed.
    """
    x = precision.upcast_half(logits)
    if mask is None:
        return x.softmax(dim=-1).to(logits.dtype)
    checks.check_mask(mask.shape, precision.dtype_name(mask.dtype), logits.shape, axes="the logits")
    # The lowest finite number, not -inf: a row with nothing present stays finite, forward and
    # backward, until it is zeroed.
    probability = x.masked_fill(~mask, torch.finfo(x.dtype).min).softmax(dim=-1)
    return probability.masked_fill(~mask, 0).to(logits.dtype)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """`y = cap tanh(x / cap)`, elementwise (SOFTCAP); in float32 for half-precision dtypes."""
    if not cap > 0:
        raise ValueError(f"cap must be greater than 0; got {cap}")
    return (cap * (precision.upcast_half(x) / cap).tanh()).to(x.dtype)
