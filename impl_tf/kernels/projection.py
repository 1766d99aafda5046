"""Several projections of one input as one matrix product."""

import math
from collections.abc import Sequence

import tensorflow as tf

from ..framework import sizes
from ..projection import Projection

__all__ = ["FusedProjection"]


class FusedProjection(Projection):
    """Several projections of one input as one product; kernels and results are concatenated."""

    def __init__(self, first: Projection, *others: Projection, name: str) -> None:
        parts = [first.outputs, *(each.outputs for each in others)]
        outputs = (sum(map(math.prod, parts)),) if others else first.outputs
        super().__init__(first.inputs, outputs, first.use_bias, dtype=first.dtype_policy, name=name)
        self.parts = parts

    def separate(self, x: tf.Tensor) -> list[tf.Tensor]:
        """Returns the result of each projection, in order."""
        ys = tf.split(self(x), [math.prod(part) for part in self.parts], axis=-1)
        return [
            tf.reshape(y, [*sizes(y)[:-1], *part]) for y, part in zip(ys, self.parts, strict=True)
        ]

    def copy(self, kernels: Sequence[tf.Tensor], biases: Sequence[tf.Tensor | None]) -> None:
        """Copies the weights of the projections, cast to its own dtype; biases: all, or none."""
        self.copy_kernels([tf.reshape(kernel, [math.prod(self.inputs), -1]) for kernel in kernels])
        if self.bias is not None:
            flat = [tf.reshape(tf.cast(bias, self.bias.dtype), [-1]) for bias in biases]
            self.bias.assign(tf.reshape(tf.concat(flat, axis=0), self.bias.shape))

    def copy_kernels(self, kernels: Sequence[tf.Tensor]) -> None:
        """Copies kernels of two axes."""
        self.kernel.assign(
            tf.concat([tf.cast(kernel_df, self.kernel.dtype) for kernel_df in kernels], axis=1)
        )
