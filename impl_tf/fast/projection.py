"""Several projections as one product."""

import math
from collections.abc import Sequence

import tensorflow as tf

from ..framework import keras
from ..projection import Projection

__all__ = ["FusedProjection"]


class FusedProjection(Projection):
    """Several projections of one input as one product: their kernels lie beside each other. Its result is theirs, in their order."""

    def __init__(self, first: Projection, *others: Projection, name: str) -> None:
        parts = [first.outputs, *(each.outputs for each in others)]
        super().__init__(first.inputs, (sum(map(math.prod, parts)),), first.use_bias, dtype=first.dtype_policy, name=name)
        self.parts = parts

    def call(self, x: tf.Tensor) -> list[tf.Tensor]:
        ys = tf.split(super().call(x), [math.prod(part) for part in self.parts], axis=-1)
        return [tf.reshape(y, [*keras.ops.shape(y)[:-1], *part]) for y, part in zip(ys, self.parts, strict=True)]

    def copy(self, projections: Sequence[Projection]) -> None:
        """Takes the weights of the projections, rounded to its own dtype."""
        width = math.prod(self.inputs)
        self.kernel.assign(tf.concat([tf.reshape(tf.cast(each.kernel, self.kernel.dtype), [width, -1]) for each in projections], axis=1))
        if self.bias is not None:
            self.bias.assign(tf.concat([tf.reshape(tf.cast(each.bias, self.bias.dtype), [-1]) for each in projections], axis=0))
