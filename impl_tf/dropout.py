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
    """`y = x / (1 - rate)` where kept, otherwise 0; the identity in evaluation.

    A `keras.layers.Dropout` with optional keep masks, which apply in every mode.
    """

    def call(
        self, x: tf.Tensor, keep: tf.Tensor | None = None, training: bool | None = None
    ) -> tf.Tensor:
        keep = self.draw(sizes(x), training) if keep is None else keep
        return self.drop(x, keep, self.rate)

    def draw(self, shape: Sequence[int | tf.Tensor], training: bool | None) -> tf.Tensor | None:
        """Draws a keep mask of this shape; None in evaluation.

        Compares whole random words with the rate. Keras compares uniform numbers in the dtype of x,
        which are so coarse in bfloat16 that a rate of 0.1 keeps 0.898 of the entries; and XLA picks
        a generator that is a hundred times slower on a CPU than Philox.
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
        """`y = x / (1 - rate)` where kept, otherwise 0; without a mask, x.

        Half precision divides in float32.
        """
        if keep is None:
            return x
        checks.check_keep(keep.shape, keep.dtype.name, x.shape, rate)
        y = upcast_half(x) / (1 - rate)
        return tf.cast(tf.where(keep, y, tf.zeros((), y.dtype)), x.dtype)


def part(keep: Keep | None, *names: str) -> tf.Tensor | Keep | None:
    """Returns the keep masks below these names, or None if there are none."""
    for name in names:
        keep = None if keep is None else keep.get(name)
    return keep
