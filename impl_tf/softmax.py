"""Softmax over the last axis, with masked entries."""

import tensorflow as tf

from reference_numpy import checks

from .precision import upcast_half

__all__ = ["softmax"]


def softmax(logits: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the last axis, where masked entries count as absent.

    `tf.nn.softmax` gives NaN for a row with no entry present: it is given a row of zeros, and its result is zeroed (EMPTY).
    """
    if mask is not None:
        checks.check_mask(mask.shape, mask.dtype.name, logits.shape, axes="the logits")
    x, present = mask_logits(upcast_half(logits), mask)
    return tf.cast(zero_empty_rows(tf.nn.softmax(x), present), logits.dtype)


def mask_logits(x: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
    """x with -inf for masked entries, and which rows have any other, `... 1`; `tf.nn.softmax` of the first, zeroed in the other rows, is p.

    A row that has none is a row of zeros: one of -inf would give NaN, and NaN times a zero cotangent is NaN.
    """
    if mask is None:
        return x, None
    present = tf.reduce_any(mask, axis=-1, keepdims=True)
    absent = tf.where(present, tf.constant(float("-inf"), x.dtype), tf.zeros((), x.dtype))
    return tf.where(mask, x, absent), present


def zero_empty_rows(y: tf.Tensor, present: tf.Tensor | None) -> tf.Tensor:
    """y where a row is present, otherwise zeros."""
    return y if present is None else tf.where(present, y, tf.zeros((), y.dtype))
