"""Inverted dropout (DROPOUT)."""

import tensorflow as tf

from reference_numpy import checks

from .backend import keras, register

__all__ = ["Dropout"]


@register
class Dropout(keras.layers.Dropout):
    """keras.layers.Dropout, active in training only, that also takes the keep mask; then it is the truth's formula in every mode."""

    def call(self, x: tf.Tensor, keep: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        if keep is None:
            return super().call(x, training=training)
        checks.check_keep(keep.shape, keep.dtype.name, x.shape, self.rate)
        return tf.where(keep, x / (1 - self.rate), tf.zeros((), x.dtype))
