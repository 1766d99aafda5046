"""Keras on the TensorFlow backend, and what the layers of this port share."""

import os
from collections.abc import Sequence
from typing import Any, Self

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

from reference_numpy import TransformerConfig

__all__ = ["Configured", "SameShape", "Traced", "Unquantized", "add_bias", "keras", "register", "widen"]

if keras.backend.backend() != "tensorflow":
    raise ValueError(f"impl_tf needs Keras on the TensorFlow backend (KERAS_BACKEND=tensorflow); got {keras.backend.backend()}")

register = keras.saving.register_keras_serializable(package="rosettaformer")


def widen(x: tf.Tensor) -> tf.Tensor:
    """float32 for half types, otherwise the tensor itself: attention, softmax and normalisation compute in this dtype."""
    x = tf.convert_to_tensor(x)
    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x


def add_bias(y: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """y + bias along the last axis; half types pass through float32, so that the gradient of the bias adds up in float32."""
    return tf.cast(tf.nn.bias_add(widen(y), widen(bias)), y.dtype)


class Configured:
    """Serialisation of a Keras layer that takes a TransformerConfig: it is saved as a plain mapping."""

    config: TransformerConfig

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": self.config.to_dict()}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        return cls(**{**config, "config": TransformerConfig.from_dict(config["config"])})


class Traced:
    """A Keras layer that says its output's shape, for `summary`; a symbolic call is traced all the same, so that its checks hold."""

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


class SameShape(Traced):
    """A Keras layer whose output has the shape of its first input."""

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(input_shape)


class Unquantized:
    """A Keras layer whose kernel stays floating: Keras would skip it with a warning."""

    def quantize(self, mode: str | None = None, *_: Any, **__: Any) -> None:
        raise ValueError(f"the kernel of {type(self).__name__} must be floating, there is no quantized form; got mode {mode!r}")
