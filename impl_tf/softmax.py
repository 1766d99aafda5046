"""Softmax over the last axis with masked entries, and the soft cap of its input."""

import tensorflow as tf

from reference_numpy import checks

from .kernels.attention import mask_logits, zero_empty_rows
from .precision import upcast_half

__all__ = ["soft_cap", "softmax"]


def softmax(logits: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the unmasked entries of the last axis.

    `tf.nn.softmax` gives NaN for a fully masked row: it gets a row of zeros instead, and its result
    is zeroed (EMPTY).
    """
    if mask is not None:
        checks.check_mask(mask.shape, mask.dtype.name, logits.shape, axes="the logits")
    x, present = mask_logits(upcast_half(logits), mask)
    return tf.cast(zero_empty_rows(tf.nn.softmax(x), present), logits.dtype)


def soft_cap(x: tf.Tensor, cap: float) -> tf.Tensor:
    """`y = cap tanh(x / cap)`, elementwise: near x far below the cap, never beyond it (SOFTCAP).

    Half-precision dtypes compute in float32. Raises ValueError unless cap is greater than 0.
    """
    if not cap > 0:
        raise ValueError(f"cap must be greater than 0; got {cap}")
    return tf.cast(tf.tanh(upcast_half(x) / cap) * cap, x.dtype)
