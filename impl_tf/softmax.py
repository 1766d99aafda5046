"""Softmax over the last axis, with masked entries."""

import tensorflow as tf

from reference_numpy import checks

from .kernels.attention import mask_logits, zero_empty_rows
from .precision import upcast_half

__all__ = ["softmax"]


def softmax(logits: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the last axis, of the entries present.

    `tf.nn.softmax` gives NaN for a row with no entry present: it is given a row of zeros, and its
    result is zeroed (EMPTY).
    """
    if mask is not None:
        checks.check_mask(mask.shape, mask.dtype.name, logits.shape, axes="the logits")
    x, present = mask_logits(upcast_half(logits), mask)
    return tf.cast(zero_empty_rows(tf.nn.softmax(x), present), logits.dtype)
