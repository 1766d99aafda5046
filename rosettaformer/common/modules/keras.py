"""The interface for Keras layers and models on TensorFlow, and for tf.Modules."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

from impl_tf.weights import from_numpy, to_numpy

from . import DEVICES
from .attributes import variables
from .recording import Enter, Leave, patched

__all__ = [
    "Functional",
    "calls",
    "device",
    "eager",
    "function",
    "gradients",
    "is_tensor",
    "like",
    "paths",
    "tensor",
    "to_numpy",
    "variables",
]

# Prefixes of TensorFlow's own attributes, which list all layers a second time; Keras has `_layers`.
OF_TENSORFLOW = ("_self_tracked_", "_self_unconditional_", "_self_name_based_", "_self_saveable_")
Functional = type(keras.Model(*[keras.Input((1,))] * 2))  # Keras' class of models with given inputs and outputs


def is_tensor(value: Any) -> bool:
    """Whether the value is a tensor or a variable."""
    return isinstance(value, (tf.Tensor, tf.Variable))


def tensor(array: Any) -> tf.Tensor:
    """Converts an array to a tensor of the nearest supported dtype."""
    return tf.convert_to_tensor(array)


def like(array: np.ndarray, tensor: Any) -> tf.Tensor:
    """Converts an array to a tensor with the other tensor's dtype and device."""
    return tf.cast(from_numpy(array, tensor.device), tensor.dtype)


def device(name: str, names: Sequence[str] = DEVICES) -> str:
    """Returns a device; cuda-tf32 is cuda with TF32 products. Raises ValueError if unavailable."""
    if name not in names:
        raise ValueError(f"device must be one of {', '.join(names)}; got {name!r}")
    if name == "cpu":
        return "/CPU:0"
    if not tf.config.list_physical_devices("GPU"):
        raise ValueError(f"device {name} needs a GPU; TensorFlow finds none")
    return "/GPU:0"


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Runs every tf.function eagerly."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def function(module: Any) -> Callable[..., Any]:
    """Returns the function that a call runs, with the module's arguments."""
    found: Callable[..., Any] = getattr(module, "call", module)
    return found


def paths(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields every layer once by its path of attributes, keys and indices, or names in a model."""
    seen: set[int] = set()

    def walk(path: str, layer: Any) -> Iterator[tuple[str, Any]]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        yield path, layer
        for name, child in _children(layer):
            yield from walk(f"{path}.{name}".lstrip("."), child)

    yield from walk("", module)


def calls(rows: Iterable[tuple[str, Any]], enter: Enter, leave: Leave) -> contextlib.AbstractContextManager[None]:
    """Reports calls of layers."""
    return patched(rows, enter, leave, function)


def gradients(tape: tf.GradientTape, outputs: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor], sought: Any) -> Any:
    """Returns gradients of the sum of cotangent * output, nested like `sought`; zeros if unused."""
    pulled = [tf.cast(cotangent, output.dtype) for cotangent, output in zip(cotangents, outputs, strict=True)]
    found = tape.gradient(list(outputs), sought, pulled, tf.UnconnectedGradients.ZERO)
    return tf.nest.map_structure(tf.convert_to_tensor, found)


def _children(layer: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(layer, (Functional, keras.Sequential)):
        yield from _named(layer.layers)
        return
    stack = getattr(layer, "layers", None)  # a tuple behind a property in impl_tf's stacks, a list in keras.Model
    for name, value in (({"layers": stack} if isinstance(stack, tuple) else {}) | vars(layer)).items():
        if name != "_layers" and not name.startswith(OF_TENSORFLOW):
            yield from _within(name, value)


def _within(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields a layer, or the layers in nested lists and mappings."""
    if isinstance(value, keras.layers.Layer):
        yield name, value
    elif isinstance(value, (list, tuple, Mapping)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _within(f"{name}.{key}", item)


def _named(several: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yields layers by name; automatic names count from 0 per model, not per process."""
    counts: dict[str, int] = {}
    for layer in several:
        own = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(layer).__name__).lower()
        automatic = re.fullmatch(r"(.+?)(_\d+)?", layer.name)
        if automatic and automatic[1].replace("_", "") == own.replace("_", ""):
            index = counts[own] = counts.get(own, -1) + 1
            yield f"{automatic[1]}_{index}" if index else automatic[1], layer
        else:
            yield layer.name, layer
