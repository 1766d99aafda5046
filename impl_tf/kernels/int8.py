"""Projections that multiply kernels and inputs in int8 (INT8)."""

import math
from collections.abc import Sequence

import tensorflow as tf

from ..framework import sizes
from ..projection import add_bias
from .projection import FusedProjection

__all__ = ["Int8Projection", "quantised"]

LARGEST = 127  # magnitude of an int8 number here
TINY = 1e-30  # lower bound of a row's largest magnitude, so that rows of zeros have a scale


class Int8Projection(FusedProjection):
    """`y = r s (x8 [W8_1 W8_2 ..]) + [b_1 b_2 ..]`: projections of one input, for inference.

    `W8 = round(W / s)` with a scale s per output, `x8 = round(x / r)` with a scale r per token, so
    that the largest magnitude is 127. Sums are int32, the rest is float32. Tied logits have their
    own kernel here and ignore the table that calls pass.
    """

    def build(self, input_shape: object = None) -> None:
        inputs, outputs = math.prod(self.inputs), math.prod(self.outputs)
        # Not `kernel`, the name of a model parameter.
        zeros = {"initializer": "zeros", "trainable": False}
        self.kernel8 = self.add_weight(
            shape=(inputs, outputs), dtype="int8", name="kernel8", **zeros
        )
        self.scale = self.add_weight(
            shape=(outputs,), initializer="ones", trainable=False, name="scale"
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=self.outputs, name="bias", **zeros)

    def call(self, x: tf.Tensor, table_vd: tf.Tensor | None = None) -> tf.Tensor:
        x8_nd, scale_n1 = quantised(tf.reshape(x, [-1, math.prod(self.inputs)]), axis=1)
        y_nf = tf.matmul(x8_nd, self.kernel8.value, output_type=tf.int32)
        y_nf = tf.cast(y_nf, tf.float32) * (scale_n1 * self.scale)
        if self.bias is not None:
            y_nf = add_bias(y_nf, tf.reshape(self.bias, [-1]))
        return tf.reshape(y_nf, [*sizes(x)[: -len(self.inputs)], *self.outputs])

    def copy_kernels(self, kernels: Sequence[tf.Tensor]) -> None:
        kernel_df = tf.concat([tf.cast(kernel_df, tf.float32) for kernel_df in kernels], axis=1)
        kernel8_df, scale_1f = quantised(kernel_df, axis=0)
        self.kernel8.assign(kernel8_df)
        self.scale.assign(scale_1f[0])


def quantised(x: tf.Tensor, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`x8 = round(x / r)`, and the scale `r = max |x| / 127` over the axis, which keeps size 1."""
    scale = tf.maximum(tf.reduce_max(tf.abs(x), axis=axis, keepdims=True), TINY) / LARGEST
    return tf.cast(tf.round(x / scale), tf.int8), scale
