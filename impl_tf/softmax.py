"""Softmax over the last axis, with masked entries."""

import tensorflow as tf

from reference_numpy import checks

from .framework import widen

__all__ = ["softmax"]


def softmax(logits: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """As the truth."""
    if mask is not None:
        checks.check_mask(mask.shape, mask.dtype.name, logits.shape, axes="the logits")
    shown, present = hide(widen(logits), mask)
    return tf.cast(zero(tf.nn.softmax(shown), present), logits.dtype)


def hide(x: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
    """x with -inf for masked entries, and which rows have any other, `... 1`; `tf.nn.softmax` of the first, zeroed in the other rows, is p.

    A row that has none is a row of zeros: one of -inf would give NaN, and NaN times a zero cotangent is NaN.
    """
    if mask is None:
        return x, None
    present = tf.reduce_any(mask, axis=-1, keepdims=True)
    absent = tf.where(present, tf.constant(float("-inf"), x.dtype), tf.zeros((), x.dtype))
    return tf.where(mask, x, absent), present


def zero(y: tf.Tensor, present: tf.Tensor | None) -> tf.Tensor:
    """y where a row is present, otherwise zeros."""
    return y if present is None else tf.where(present, y, tf.zeros((), y.dtype))
