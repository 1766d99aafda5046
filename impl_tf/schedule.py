"""The learning rate schedule."""

import numpy as np
import tensorflow as tf

from .framework import keras, register

__all__ = ["noam"]


def noam(step: int | tf.Tensor, width: int, warmup: int, dtype: tf.DType = tf.float64) -> tf.Tensor:
    """`rate(n) = d^-1/2 min(n^-1/2, n warmup^-3/2)` (NOAM).

    n is the step, counted from 1. Computed in float64, then cast to dtype. A step in a graph is not
    checked.
    """
    for name, value in {"step": step, "width": width, "warmup": warmup}.items():
        if isinstance(value, tf.Tensor) and tf.is_symbolic_tensor(value):
            value = np.ones((), value.dtype.as_numpy_dtype)
        array = np.asarray(value)
        if array.dtype.kind not in "iu" or (array < 1).any():
            raise ValueError(f"{name} must be an integer of at least 1; got {array.tolist()}")
    n = tf.cast(step, tf.float64)
    return tf.cast(width**-0.5 * tf.minimum(n**-0.5, n * warmup**-1.5), dtype)


@register
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """`noam` as a Keras schedule, which Keras calls with the updates done: the first has n = 1."""

    def __init__(self, width: int, warmup: int) -> None:
        self.width, self.warmup = width, warmup

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return noam(tf.convert_to_tensor(step) + 1, self.width, self.warmup)

    def get_config(self) -> dict[str, object]:
        return {"width": self.width, "warmup": self.warmup}
