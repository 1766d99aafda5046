"""The layers of a Keras model by path, and the record of their calls."""

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

from .. import kinds
from .base import Called, tensors

__all__ = ["Functional", "called", "is_tensor", "layers", "watched"]

Functional = type(keras.Model(*[keras.Input((1,))] * 2))  # Keras makes this class of a model that is given inputs and outputs


def is_tensor(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.Variable))


def layers(model: Any) -> Iterator[tuple[str, Any, str]]:
    """The layers by path from the outermost, each with its kind; attention is one, whatever it is made of."""
    seen: set[int] = set()

    def walk(path: str, layer: Any) -> Iterator[tuple[str, Any, str]]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        kind = kinds.kind_of("keras", layer)
        yield path, layer, kind
        if kind == "attention":
            return
        for name, child in _children(layer):
            yield from walk(f"{path}.{name}".lstrip("."), child)

    yield from walk("", model)


def _children(layer: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(layer, (Functional, keras.Sequential)):
        yield from _named(layer.layers)
        return
    stack = getattr(layer, "layers", None)  # a tuple behind a property in our stacks, a list in keras.Model
    for name, value in (({"layers": stack} if isinstance(stack, tuple) else {}) | vars(layer)).items():
        if name == "_layers" or name.startswith("_self_"):  # Keras' and TensorFlow's own lists of all of them
            continue
        if isinstance(value, keras.layers.Layer):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}.{index}", item) for index, item in enumerate(value) if isinstance(item, keras.layers.Layer))
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", item) for key, item in value.items() if isinstance(item, keras.layers.Layer))


def _named(several: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """By name; those that Keras has named itself count from 0 within their model, and not through the process."""
    counts: dict[str, int] = {}
    for layer in several:
        own = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(layer).__name__).lower()
        automatic = re.fullmatch(r"(.+?)(_\d+)?", layer.name)
        if automatic and automatic[1].replace("_", "") == own.replace("_", ""):
            index = counts[own] = counts.get(own, -1) + 1
            yield f"{automatic[1]}_{index}" if index else automatic[1], layer
        else:
            yield layer.name, layer


def called(path: str, index: int, given: list[np.ndarray], output: Any) -> Called:
    outputs = [tensor.numpy() for tensor in tensors(output, is_tensor)]
    return Called(path, index, given, outputs, [None] * len(given), [None] * len(outputs))


@contextlib.contextmanager
def watched(rows: Sequence[tuple[str, Any, str]], calls: list[Called], templates: Any) -> Iterator[None]:
    """Records the calls, through the `__call__` that all layers share."""
    paths = {id(layer): path for path, layer, _ in rows}
    counts: dict[str, int] = {}
    original = keras.layers.Layer.__call__

    @functools.wraps(original)
    def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if id(layer) not in paths:
            return original(layer, *args, **kwargs)
        path = paths[id(layer)]
        index = counts[path] = counts.get(path, -1) + 1
        templates[path, index] = (args, kwargs)
        given = [np.array(tensor) for tensor in tensors([args, kwargs], is_tensor)]
        output = original(layer, *args, **kwargs)
        calls.append(called(path, index, given, output))
        return output

    __call__.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    with mock.patch.object(keras.layers.Layer, "__call__", __call__):
        yield
