"""Half-precision dtypes: what is computed in float32."""

import tensorflow as tf

__all__ = ["upcast_half", "wide"]


def upcast_half(x: tf.Tensor) -> tf.Tensor:
    """x in float32 if its dtype is a half-precision one, otherwise x itself.

    Attention, softmax and normalisation compute in this dtype.
    """
    x = tf.convert_to_tensor(x)
    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x


def wide(dtype: str | tf.DType) -> tf.DType:
    """float32 in place of a half-precision dtype, otherwise the dtype itself."""
    return tf.float32 if tf.as_dtype(dtype).size == 2 else tf.as_dtype(dtype)
