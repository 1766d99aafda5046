"""Half-precision dtypes: what is computed in float32."""

import tensorflow as tf

__all__ = ["upcast_half"]


def upcast_half(x: tf.Tensor) -> tf.Tensor:
    """x in float32 if its dtype is a half-precision one, otherwise x itself.

    Attention, softmax and normalisation compute in this dtype.
    """
    x = tf.convert_to_tensor(x)
    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x
