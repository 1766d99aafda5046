"""Softmax over the last axis, with masked entries."""

import numpy as np

from . import arithmetic, checks
from .arrays import Array, Gradients, Mask

__all__ = ["softmax", "softmax_vjp"]


def softmax(logits: Array, mask: Mask = None) -> Array:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the last axis; masked entries are
    absent.

    mask: boolean, True = present, broadcastable to logits. A row with no entry present is 0
    (EMPTY). Half-precision dtypes compute in float32 (SOFTMAX). Raises ValueError on a mask of
    another dtype or shape, and on rows of length 0.
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
    """`dx_j = p_j (g_j - sum_i p_i g_i)`: zero for masked entries and rows without one (EMPTY)."""
    p, g = softmax(arithmetic.upcast_half(logits), mask), arithmetic.upcast_half(cotangent)
    return {"logits": (p * (g - arithmetic.sum(p * g, axis=-1))).astype(logits.dtype, copy=False)}
