"""Runs SavedModels with TensorFlow."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from ..examining import saved_model
from ..signature import Artefact, Entry, Tensor, named

# operations that change a variable
_ASSIGNING = re.compile(r"Assign\w*Op|Resource(Scatter|StridedSliceAssign)\w*|Rng\w+|Stateful(Uniform|Standard|Truncated)\w*")


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Opens a SavedModel. Raises ValueError if it is damaged, or does more than compute."""
    try:
        graph, operations = saved_model.examine(path)
        loaded = tf.saved_model.load(path, tags=list(graph.meta_info_def.tags))
        if not loaded.signatures:
            raise ValueError("it has no signature")
    except Exception as error:  # TensorFlow raises many types: OpError, AssertionError, DecodeError, ...
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a SavedModel that TensorFlow {tf.__version__} can open; {why}") from None
    return _Model(loaded, saved_model.bodies(graph), assigns=any(map(_ASSIGNING.fullmatch, operations)))


class _Model(Artefact):
    """A SavedModel. assigns: whether functions change variables, which `run` then restores."""

    versions = MappingProxyType({"tensorflow": tf.__version__})

    def __init__(self, loaded: Any, bodies: Mapping[str, str], assigns: bool) -> None:
        self._loaded = loaded  # keeps the variables alive
        self._functions = named(loaded.signatures)
        variables = {id(one): one for function in self._functions.values() for one in function.variables} if assigns else {}
        self._kept = [(variable, variable.read_value()) for variable in variables.values()]
        own = named(bodies)
        self.entries = {}
        for name, function in self._functions.items():
            given, results = function.structured_input_signature[1], function.structured_outputs
            self.entries[name] = Entry(name, _tensors(given), _tensors(results), body=own.get(name, ""))

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with tf.device("CPU"):
            for variable, value in self._kept:
                variable.assign(value)
            found = self._functions[entry](**{name: tf.constant(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in found.items()}


def _tensors(specs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, spec.dtype.name, _sizes(spec.shape)) for name, spec in sorted(specs.items()))


def _sizes(shape: tf.TensorShape) -> tuple[int | str, ...]:
    return () if shape.rank is None else tuple("" if size is None else size for size in shape)
