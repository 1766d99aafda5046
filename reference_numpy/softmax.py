"""Softmax over the last axis with masked entries, and the soft cap of its input."""

import numpy as np

from . import arithmetic, checks
from .arrays import Array, Gradients, Mask

__all__ = ["soft_cap", "soft_cap_vjp", "softmax", "softmax_vjp"]


def softmax(logits: Array, mask: Mask = None) -> Array:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the unmasked entries of the last axis.

    mask: boolean, True = present, broadcastable to logits. Fully masked rows are 0 (EMPTY).
    Half-precision dtypes compute in float32 (SOFTMAX). Raises ValueError if the mask has another
    dtype or shape, and on rows of length 0.
    """
    if logits.shape[-1] == 0:
        raise ValueError(f"logits must have rows of length at least 1; got shape {logits.shape}")
    x = arithmetic.upcast_half(logits)
    if mask is not None:
        checks.check_mask(mask.shape, str(mask.dtype), logits.shape, axes="the logits")
        x = np.where(mask, x, x.dtype.type(-np.inf))
    largest = np.max(x, axis=-1, keepdims=True)
    empty = np.isneginf(largest)
    exponential = arithmetic.exp(x - np.where(empty, x.dtype.type(0), largest))
    denominator = np.where(empty, x.dtype.type(1), arithmetic.sum(exponential, axis=-1))
    return arithmetic.divide(exponential, denominator).astype(logits.dtype, copy=False)


def softmax_vjp(logits: Array, mask: Mask = None, *, cotangent: Array) -> Gradients:
    """`dx_j = p_j (g_j - sum_i p_i g_i)`; zero for masked entries and fully masked rows (EMPTY)."""
    p, g = softmax(arithmetic.upcast_half(logits), mask), arithmetic.upcast_half(cotangent)
    return {"logits": (p * (g - arithmetic.sum(p * g, axis=-1))).astype(logits.dtype, copy=False)}


def soft_cap(x: Array, cap: float) -> Array:
    """`y = cap tanh(x / cap)`, elementwise: near x far below the cap, never beyond it (SOFTCAP).

    Half-precision dtypes compute in float32. Raises ValueError unless cap is greater than 0.
    Source: Bello et al. 2016, section 4.1 (logit clipping); Gemma Team 2024, Gemma 2, section 2.
    """
    if not cap > 0:
        raise ValueError(f"cap must be greater than 0; got {cap}")
    wide = arithmetic.upcast_half(x)
    bent = arithmetic.tanh(arithmetic.divide(wide, wide.dtype.type(cap)))
    return (bent * wide.dtype.type(cap)).astype(x.dtype, copy=False)


def soft_cap_vjp(x: Array, cap: float, *, cotangent: Array) -> Gradients:
    """`dx = g (1 - tanh^2(x / cap))`."""
    wide, g = arithmetic.upcast_half(x), arithmetic.upcast_half(cotangent)
    bent = arithmetic.tanh(arithmetic.divide(wide, wide.dtype.type(cap)))
    return {"x": (g * (wide.dtype.type(1) - bent * bent)).astype(x.dtype, copy=False)}
