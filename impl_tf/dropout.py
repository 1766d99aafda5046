"""Inverted dropout (DROPOUT)."""

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from reference_numpy import checks

from .framework import Recomputed, Tree, keras, register, sizes
from .precision import upcast_half

__all__ = ["Dropout"]

Keep: TypeAlias = Tree  # keep masks, nested by site


@register
class Dropout(Recomputed, keras.layers.Dropout):
    """`y = x / (1 - rate)` where keep, otherwise 0; the identity in evaluation.

    keras.layers.Dropout that also takes the keep mask; a given one is applied in every mode.
    """

    def call(
        self, x: tf.Tensor, keep: tf.Tensor | None = None, training: bool | None = None
    ) -> tf.Tensor:
        keep = self.draw(sizes(x), training) if keep is None else keep
        return self.drop(x, keep, self.rate)

    def draw(self, shape: Sequence[int | tf.Tensor], training: bool | None) -> tf.Tensor | None:
        """A random keep mask of that shape; None in evaluation.

        Whole random words are compared with the rate. Keras compares uniform numbers of x's dtype:
        those of bfloat16 are so few that 0.898 is kept at a rate of 0.1, and XLA, when it may
        choose the generator, takes a hundred times as long on a CPU as this one (Philox).
        """
        if not training or not self.rate:
            return None
        noise = self.noise_shape or (None,) * len(shape)
        shape = [own if size is None else size for own, size in zip(shape, noise, strict=True)]
        seed = self.seed_generator.next()
        word = tf.random.stateless_uniform(
            shape, seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
        )
        return word >= tf.constant(int(self.rate * 2**32), tf.uint32)

    @staticmethod
    def drop(x: tf.Tensor, keep: tf.Tensor | None, rate: float) -> tf.Tensor:
        """`y = x / (1 - rate)` where keep, otherwise 0; x without a keep mask.

        Half precision is divided in float32.
        """
        if keep is None:
            return x
        checks.check_keep(keep.shape, keep.dtype.name, x.shape, rate)
        y = upcast_half(x) / (1 - rate)
        return tf.cast(tf.where(keep, y, tf.zeros((), y.dtype)), x.dtype)


def part(keep: Keep | None, *names: str) -> tf.Tensor | Keep | None:
    """The keep masks below these names; None where there are none."""
    for name in names:
        keep = None if keep is None else keep.get(name)
    return keep
