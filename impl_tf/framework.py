"""Keras on the TensorFlow backend, and what it asks of a layer."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig

__all__ = ["Configured", "Traced", "Unquantized", "both", "id_bounds", "keras", "register"]

if keras.backend.backend() != "tensorflow":
    raise ValueError(f"impl_tf needs Keras on the TensorFlow backend (KERAS_BACKEND=tensorflow); got {keras.backend.backend()}")

register = keras.saving.register_keras_serializable(package="rosettaformer")


class Traced(keras.layers.Layer):
    """A Keras layer that gives its output's shape, by default that of its first input, for `summary`.

    A symbolic call is traced all the same, so that its checks hold.
    """

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(input_shape)


class Configured(Traced):
    """A Keras layer of a TransformerConfig, which is saved as a plain mapping. The layers that are its attributes are built with it."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config

    def build(self, input_shape: Any = None) -> None:
        for part in vars(self).values():
            if isinstance(part, keras.layers.Layer) and not part.built:
                part.build((None, None, self.config.model_width))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        return cls(**{**config, "config": TransformerConfig.from_dict(config["config"])})


class Unquantized:
    """A Keras layer whose kernel stays floating: Keras would skip it with a warning."""

    def quantize(self, mode: str | None = None, *_: Any, **__: Any) -> None:
        raise ValueError(f"the kernel of {type(self).__name__} must be floating, there is no quantized form; got mode {mode!r}")


def id_bounds(ids: Any) -> tuple[int, ...]:
    """The smallest and the largest id of a tensor or array; () where they are not integers, or none, or not known: in a graph."""
    if tf.is_symbolic_tensor(ids):
        return ()
    ids = np.asarray(ids)
    return (int(ids.min()), int(ids.max())) if ids.dtype.kind in "iu" and ids.size else ()


def both(config: TransformerConfig, source: Any, target: Any) -> tuple[Any, Any]:
    """Source and target (ids, or their shapes), which may come as one argument: a pair or a mapping, or what a stack alone reads."""
    if target is None and not config.encoder_layers:
        return None, source
    if not config.decoder_layers:
        return source, target
    match source:
        case {"source": first, "target": second} | [first, second] if target is None and len(source) == 2:
            return first, second
    if target is None:
        came = sorted(source) if isinstance(source, Mapping) else type(source).__name__
        raise ValueError(f"the model must be given source and target: as two arguments, a pair, or a mapping of these names; got {came}")
    return source, target
