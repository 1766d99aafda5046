"""Half-precision dtypes: what is computed in float32."""

import tensorflow as tf

__all__ = ["upcast_half"]


def upcast_half(x: tf.Tensor) -> tf.Tensor:
    """float32 for half-precision dtypes, otherwise the tensor itself: attention, softmax and normalisation compute in this dtype."""
    x = tf.convert_to_tensor(x)
    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x
