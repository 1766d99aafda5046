"""The affine map that attention, the feed-forward and the logits share."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .framework import Unquantized, keras, register
from .precision import upcast_half

__all__ = ["Projection", "add_bias", "xavier_uniform"]


def xavier_uniform(fan_in: int, fan_out: int) -> keras.initializers.Initializer:
    """Uniform in `+-sqrt(6 / (fan_in + fan_out))` (INIT).

    Keras' own Glorot initialiser takes an unfused kernel `d h k` for a convolution and gets its fans wrong.
    """
    limit = math.sqrt(6 / (fan_in + fan_out))
    return keras.initializers.RandomUniform(-limit, limit)


def add_bias(y: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """`y + b` along the last axis; half precision passes through float32, so that the gradient of the bias is summed in float32."""
    return tf.cast(tf.nn.bias_add(upcast_half(y), upcast_half(bias)), y.dtype)


@register
class Projection(Unquantized, keras.layers.Layer):
    """`y = x W + b`: W contracts its `inputs` axes with the last axes of x and gives `outputs` axes in their place.

    keras.layers.EinsumDense would do, but on a CPU without half-precision matrix units its batched product is summed in half precision;
    one matrix product of all positions is summed in float32 everywhere and is faster.
    """

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], bias: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inputs, self.outputs, self.use_bias = tuple(inputs), tuple(outputs), bias

    def build(self, input_shape: Any = None) -> None:
        initializer = xavier_uniform(math.prod(self.inputs), math.prod(self.outputs))
        self.kernel = self.add_weight(shape=self.inputs + self.outputs, initializer=initializer, name="kernel")
        self.bias = self.add_weight(shape=self.outputs, initializer="zeros", name="bias") if self.use_bias else None

    def call(self, x: tf.Tensor) -> tf.Tensor:
        inputs, outputs = math.prod(self.inputs), math.prod(self.outputs)
        y = tf.matmul(tf.reshape(x, [-1, inputs]), tf.reshape(self.kernel, [inputs, outputs]))
        if self.bias is not None:
            y = add_bias(y, tf.reshape(self.bias, [outputs]))  # next to the product, so that a graph fuses the two
        return tf.reshape(y, [*keras.ops.shape(x)[: -len(self.inputs)], *self.outputs])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "inputs": self.inputs, "outputs": self.outputs, "bias": self.use_bias}
