"""The affine map that attention, the feed-forward and the logits share."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .backend import keras, register

__all__ = ["Projection"]


@register
class Projection(keras.layers.Layer):
    """`y = x W + b`: W contracts its `inputs` axes with the last axes of x and gives `outputs` axes in their place.

    keras.layers.EinsumDense would do, but on a CPU without half-type matrix units its batched product adds up in the half type;
    `tf.tensordot` folds x into one matrix product, which adds up in float32 everywhere and is faster.
    """

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], bias: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inputs, self.outputs, self.use_bias = tuple(inputs), tuple(outputs), bias

    def build(self, input_shape: Any = None) -> None:
        limit = math.sqrt(6 / (math.prod(self.inputs) + math.prod(self.outputs)))  # the fans of the unfused projection (INIT)
        xavier_uniform = keras.initializers.RandomUniform(-limit, limit)
        self.kernel = self.add_weight(shape=self.inputs + self.outputs, initializer=xavier_uniform, name="kernel")
        self.bias = self.add_weight(shape=self.outputs, initializer="zeros", name="bias") if self.use_bias else None

    def call(self, x: tf.Tensor) -> tf.Tensor:
        y = tf.tensordot(x, self.kernel, axes=len(self.inputs))
        return y if self.bias is None else y + self.bias

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "inputs": self.inputs, "outputs": self.outputs, "bias": self.use_bias}
