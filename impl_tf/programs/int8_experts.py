"""Experts that multiply kernels and inputs in int8 (INT8)."""

from collections.abc import Sequence

import tensorflow as tf

from ..experts import Stacked, chosen
from ..kernels.int8 import quantised

__all__ = ["Int8Stacked"]


class Int8Stacked(Stacked):
    """`y = r s (x8 W8_e) + b_e`: a projection for each expert, as `Int8Projection`."""

    def __init__(self, given: Stacked, name: str) -> None:
        (inputs,), (outputs,), kind = given.inputs, given.outputs, given.dtype_policy
        super().__init__(given.experts, inputs, outputs, given.use_bias, dtype=kind, name=name)

    def build(self, input_shape: object = None) -> None:
        fixed = {"initializer": "zeros", "trainable": False}
        experts, (inputs,), (outputs,) = self.experts, self.inputs, self.outputs
        shape = experts, inputs, outputs
        self.kernel8 = self.add_weight(shape=shape, dtype="int8", name="kernel8", **fixed)
        self.scale = self.add_weight(shape=(experts, 1, outputs), name="scale", **fixed)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=(experts, outputs), name="bias", **fixed)

    def call(self, x_gnd: tf.Tensor, expert_g: tf.Tensor | None = None) -> tf.Tensor:
        x8_gnd, scale_gn1 = quantised(x_gnd, axis=2)
        kernel8_gdm = chosen(self.kernel8.value, expert_g)
        y_gnm = tf.cast(tf.matmul(x8_gnd, kernel8_gdm, output_type=tf.int32), tf.float32)
        y_gnm *= scale_gn1 * chosen(self.scale.value, expert_g)
        if self.bias is not None:
            y_gnm += chosen(self.bias.value, expert_g)[:, tf.newaxis]
        return y_gnm

    def copy(self, kernels: Sequence[tf.Tensor], biases: Sequence[tf.Tensor | None]) -> None:
        """Copies the weights of one stacked projection."""
        kernel8_xdm, scale_x1m = quantised(tf.cast(kernels[0], tf.float32), axis=1)
        self.kernel8.assign(kernel8_xdm)
        self.scale.assign(scale_x1m)
        if self.bias is not None:
            self.bias.assign(tf.cast(biases[0], self.bias.dtype))
