"""Softmax over the last axis, with masked entries."""

import tensorflow as tf

from reference_numpy import checks

from .backend import widen

__all__ = ["softmax"]


def softmax(logits: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """As the truth."""
    x = widen(logits)
    if mask is None:
        return tf.cast(tf.nn.softmax(x), logits.dtype)
    checks.check_mask(mask.shape, mask.dtype.name, logits.shape, axes="the logits")
    # An empty row is a row of zeros until it is zeroed: one of -inf would be NaN, and NaN times a zero cotangent is NaN.
    present = tf.reduce_any(mask, axis=-1, keepdims=True)
    absent = tf.where(present, tf.constant(float("-inf"), x.dtype), tf.zeros((), x.dtype))
    p = tf.nn.softmax(tf.where(mask, x, absent))
    return tf.cast(tf.where(present, p, tf.zeros((), x.dtype)), logits.dtype)
