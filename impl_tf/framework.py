"""Keras on the TensorFlow backend, and what it asks of a layer."""

import os
from collections.abc import Sequence
from typing import Any, Self

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras

from reference_numpy import TransformerConfig

__all__ = ["Configured", "SameShape", "Traced", "Unquantized", "keras", "register"]

if keras.backend.backend() != "tensorflow":
    raise ValueError(f"impl_tf needs Keras on the TensorFlow backend (KERAS_BACKEND=tensorflow); got {keras.backend.backend()}")

register = keras.saving.register_keras_serializable(package="rosettaformer")


class Configured:
    """Serialisation of a Keras layer that takes a TransformerConfig: it is saved as a plain mapping."""

    config: TransformerConfig

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": self.config.to_dict()}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        return cls(**{**config, "config": TransformerConfig.from_dict(config["config"])})


class Traced:
    """A Keras layer that gives its output's shape, for `summary`; a symbolic call is traced all the same, so that its checks hold."""

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
