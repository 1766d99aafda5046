"""Dtypes: half-precision dtypes (float16, bfloat16) compute in float32 where it matters."""

import tensorflow as tf

__all__ = ["upcast_half", "wide"]


def upcast_half(x: tf.Tensor) -> tf.Tensor:
    """Returns a half-precision tensor as float32, and any other tensor unchanged.

    Attention, softmax and normalization compute in this dtype.
    """
    x = tf.convert_to_tensor(x)
    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x


def wide(dtype: str | tf.DType) -> tf.DType:
    """Returns float32 for half-precision dtypes, otherwise the dtype itself."""
    return tf.float32 if tf.as_dtype(dtype).size == 2 else tf.as_dtype(dtype)
