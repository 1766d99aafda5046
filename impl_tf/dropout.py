"""Inverted dropout (DROPOUT)."""

import tensorflow as tf

from reference_numpy import checks

from .framework import Recomputed, keras, register
from .precision import upcast_half

__all__ = ["Dropout"]


@register
class Dropout(Recomputed, keras.layers.Dropout):
    """`y = x / (1 - rate)` where keep, otherwise 0; the identity in evaluation.

    keras.layers.Dropout that also takes the keep mask; a given one is applied in every mode.

    A random mask compares whole random words with the rate. Keras compares uniform numbers of x's dtype: those of bfloat16 are so few that
    0.898 is kept at a rate of 0.1, and XLA, when it may choose the generator, takes a hundred times as long on a CPU as this one (Philox).
    """

    def call(
        self, x: tf.Tensor, keep: tf.Tensor | None = None, training: bool | None = None
    ) -> tf.Tensor:
        if keep is None and training and self.rate:
            noise = self.noise_shape or (None,) * len(x.shape)
            shape = [
                size if wanted is None else wanted
                for size, wanted in zip(keras.ops.shape(x), noise, strict=True)
            ]
            seed = self.seed_generator.next()
            word = tf.random.stateless_uniform(
                shape, seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
            )
            keep = word >= tf.constant(int(self.rate * 2**32), tf.uint32)
        return self.drop(x, keep, self.rate)

    @staticmethod
    def drop(x: tf.Tensor, keep: tf.Tensor | None, rate: float) -> tf.Tensor:
        """`y = x / (1 - rate)` where keep, otherwise 0; the identity without a keep mask. Half precision is divided in float32."""
        if keep is None:
            return x
        checks.check_keep(keep.shape, keep.dtype.name, x.shape, rate)
        y = upcast_half(x) / (1 - rate)
        return tf.cast(tf.where(keep, y, tf.zeros((), y.dtype)), x.dtype)
