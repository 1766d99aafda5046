"""The affine map that attention, the feed-forward and the logits share."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .framework import Unquantized, add_bias, keras, register

__all__ = ["Joined", "Projection", "xavier_uniform"]


def xavier_uniform(fan_in: int, fan_out: int) -> keras.initializers.Initializer:
    """Keras' own Glorot initialiser takes an unfused kernel `d h k` for a convolution and gets its fans wrong (INIT)."""
    limit = math.sqrt(6 / (fan_in + fan_out))
    return keras.initializers.RandomUniform(-limit, limit)


@register
class Projection(Unquantized, keras.layers.Layer):
    """`y = x W + b`: W contracts its `inputs` axes with the last axes of x and gives `outputs` axes in their place.

    keras.layers.EinsumDense would do, but on a CPU without half-type matrix units its batched product adds up in the half type;
    one matrix product of all positions adds up in float32 everywhere and is faster.
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


@register
class Joined(Projection):
    """Several projections of one input as one product: their kernels lie beside each other. Its result is theirs, in their order."""

    def __init__(self, inputs: Sequence[int], parts: Sequence[Sequence[int]], bias: bool, **kwargs: Any) -> None:
        super().__init__(inputs, (sum(map(math.prod, parts)),), bias, **kwargs)
        self.parts = [tuple(part) for part in parts]

    def call(self, x: tf.Tensor) -> list[tf.Tensor]:
        ys = tf.split(super().call(x), [math.prod(part) for part in self.parts], axis=-1)
        return [tf.reshape(y, [*keras.ops.shape(y)[:-1], *part]) for y, part in zip(ys, self.parts, strict=True)]

    def copy(self, projections: Sequence[Projection]) -> None:
        """Takes the weights of the projections, rounded to its own dtype."""
        width = math.prod(self.inputs)
        self.kernel.assign(tf.concat([tf.reshape(tf.cast(each.kernel, self.kernel.dtype), [width, -1]) for each in projections], axis=1))
        if self.bias is not None:
            self.bias.assign(tf.concat([tf.reshape(tf.cast(each.bias, self.bias.dtype), [-1]) for each in projections], axis=0))

    def get_config(self) -> dict[str, Any]:
        config = {name: value for name, value in super().get_config().items() if name != "outputs"}
        return {**config, "parts": self.parts}
