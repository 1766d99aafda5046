"""The affine map used by attention, feed-forward and logits."""

import math
from collections.abc import Mapping, MutableMapping, Sequence

import tensorflow as tf

from .framework import Traced, keras, register, sizes, unlocked
from .precision import upcast_half

__all__ = ["Adapted", "Projection", "add_bias", "xavier_uniform"]


def xavier_uniform(fan_in: int, fan_out: int) -> keras.initializers.Initializer:
    """Uniform in `+-sqrt(6 / (fan_in + fan_out))` (INIT).

    Keras' Glorot initializer treats a kernel `d h k` as a convolution and gets its fans wrong.
    """
    limit = math.sqrt(6 / (fan_in + fan_out))
    return keras.initializers.RandomUniform(-limit, limit)


def add_bias(y: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """`y + b` along the last axis; half precision and the gradient of the bias add in float32."""
    return tf.cast(tf.nn.bias_add(upcast_half(y), upcast_half(bias)), y.dtype)


class Adapted(Traced):
    """A layer whose matrix W supports LoRA: `W + alpha / rank A B`, with W frozen and A and B
    narrow.

    As in keras.layers.EinsumDense and Embedding, A has the axes of W with the rank as the last one,
    and saved files hold the sum. There is no quantized form.
    """

    matrix = "kernel"  # attribute of W
    adapters = ("lora_kernel_a", "lora_kernel_b")  # attributes of A and B
    lora_enabled = False

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: "str | keras.initializers.Initializer" = "he_uniform",
        b_initializer: "str | keras.initializers.Initializer" = "zeros",
    ) -> None:
        """Freezes W and adds A and B.

        Raises ValueError if the layer is not built, has no W of its own, or already has A and B.
        """
        if not self.built or self.lora_enabled or not hasattr(self, self.matrix):
            raise ValueError(
                f"enable LoRA once, in a built layer that has a {self.matrix} of its own; "
                f"got built={self.built}, {self.matrix}={hasattr(self, self.matrix)}, "
                f"lora_enabled={self.lora_enabled}"
            )
        kernel = getattr(self, self.matrix)
        dtype = "float32" if tf.as_dtype(kernel.dtype).size == 2 else kernel.dtype
        shapes = (*kernel.shape[:-1], rank), (rank, kernel.shape[-1])
        initializers = a_initializer, b_initializer
        with unlocked(self):
            for name, shape, first in zip(self.adapters, shapes, initializers, strict=True):
                weight = self.add_weight(shape=shape, initializer=first, dtype=dtype, name=name)
                setattr(self, name, weight)
        kernel.trainable = False
        self.lora_enabled, self.lora_rank = True, rank
        self.lora_alpha = rank if lora_alpha is None else lora_alpha

    @property
    def lora(self) -> list[keras.Variable]:
        """A and B; empty if LoRA is not enabled."""
        return [getattr(self, name) for name in self.adapters] if self.lora_enabled else []

    def adapted(self) -> tf.Tensor | tf.Variable:
        """`W + alpha / rank A B`, or W."""
        kernel = getattr(self, self.matrix).value
        if not self.lora_enabled:
            return kernel
        a, b = (variable.value for variable in self.lora)
        added = self.lora_alpha / self.lora_rank * tf.matmul(a, b)
        return tf.cast(tf.cast(kernel, a.dtype) + added, kernel.dtype)

    def reset_lora(self) -> None:
        """Sets B to 0, so that LoRA adds nothing."""
        self.lora[1].assign(tf.zeros_like(self.lora[1]))

    def save_own_variables(self, store: MutableMapping[str, tf.Tensor]) -> None:
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        store["0"] = self.adapted()
        if getattr(self, "bias", None) is not None:
            store["1"] = self.bias

    def load_own_variables(self, store: Mapping[str, tf.Tensor]) -> None:
        if not self.lora_enabled:
            super().load_own_variables(store)
            return
        getattr(self, self.matrix).assign(store["0"])
        if getattr(self, "bias", None) is not None:
            self.bias.assign(store["1"])
        self.reset_lora()

    def quantize(self, mode: str | None = None, *_: object, **__: object) -> None:
        raise ValueError(
            f"{type(self).__name__} has no quantized form, so its kernel must stay floating; "
            f"got mode {mode!r}"
        )


@register
class Projection(Adapted):
    """`y = x W + b`: W contracts its `inputs` axes with the last axes of x and appends `outputs`.

    keras.layers.EinsumDense may sum its batched product in half precision on a CPU; one matrix
    product over all positions is summed in float32 everywhere and is faster.
    """

    def __init__(
        self, inputs: Sequence[int], outputs: Sequence[int], bias: bool, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.inputs, self.outputs, self.use_bias = tuple(inputs), tuple(outputs), bias

    def build(self, input_shape: object = None) -> None:
        initializer = xavier_uniform(math.prod(self.inputs), math.prod(self.outputs))
        self.kernel = self.add_weight(
            shape=self.inputs + self.outputs, initializer=initializer, name="kernel"
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=self.outputs, initializer="zeros", name="bias")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        inputs, outputs = math.prod(self.inputs), math.prod(self.outputs)
        y = tf.matmul(tf.reshape(x, [-1, inputs]), tf.reshape(self.adapted(), [inputs, outputs]))
        if self.bias is not None:  # next to the product, so that a graph fuses the two
            y = add_bias(y, tf.reshape(self.bias, [outputs]))
        return tf.reshape(y, [*sizes(x)[: -len(self.inputs)], *self.outputs])

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (*input_shape[: -len(self.inputs)], *self.outputs)

    def get_config(self) -> dict[str, object]:
        own = {"inputs": self.inputs, "outputs": self.outputs, "bias": self.use_bias}
        return {**super().get_config(), **own}
