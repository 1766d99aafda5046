"""A side that is an ONNX file, run by ONNX Runtime with its own weights. It has no gradients and no float64."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ...artefacts.opening import open_artefact
from ...modules import arguments
from .. import kinds
from . import behaviour
from .base import Arrays, Layer, LayerCall, Model, Variable, guarded
from .onnx_scopes import Graph, Scope

ROWS, LENGTH = 2, 7  # of random tokens, where the file fixes no size
LARGEST = 2**31 - 1  # bytes of a message that protobuf writes


class OnnxModel(Model):
    """An ONNX file. Its layers are the scopes of its nodes, its variables the initialisers that they read.

    Raises ValueError if the file is damaged or cannot be taken apart, and `artefacts.opening.Absent`.
    """

    framework = "onnx"

    def __init__(self, path: Path) -> None:
        self._artefact = open_artefact(path)
        self._inputs = {tensor.name: tensor for tensor in self._artefact.entries["forward"].inputs}
        model = onnx.load(path)
        if model.ByteSize() > LARGEST:
            raise ValueError(f"{path} holds more than 2 GiB, and its layers cannot be shown; check compares its outputs")
        self._graph = Graph(model)
        self._scopes = self._graph.scopes
        tensors = dict.fromkeys(name for scope in self._scopes.values() for name in (*scope.inputs, *scope.outputs))
        self._shown = [name for name in tensors if name not in self._inputs]
        self._session = _session(self._graph.showing(self._shown))
        self._alone: dict[str, onnxruntime.InferenceSession] = {}
        self._tensors: Arrays = {}
        self._names = {}
        for weight, paths in self._graph.owners.items():
            self._names |= {weight if path == paths[0] else f"{weight} in {path}": (weight, path) for path in paths}
        self.defaults = self._suggested()
        self.notes = ("the file has no gradients and no training: its outputs and layers are compared",)
        if other := sorted({tensor.dtype for tensor in self._artefact.entries["forward"].outputs} - {"float32"}):
            self.notes += (f"the file computes in {' and '.join(other)}, whose rounding counts as a difference",)

    def _suggested(self) -> tuple[str, ...]:
        """Declarations of random tokens, of the sizes that the file fixes; none if another input is needed, or a range is not known."""
        names = [name for name in self._inputs if name not in arguments.beside((), self._inputs)]
        found = []
        for name, length in zip(names, "tsuvwxyz", strict=False):
            tensor, below = self._inputs[name], self._graph.rows(name)
            if not tensor.dtype.startswith("int") or not below or len(tensor.shape) != 2 or not name.isidentifier():
                return ()
            rows, tokens = (size if isinstance(size, int) else free for size, free in zip(tensor.shape, (ROWS, LENGTH), strict=True))
            found.append(f"{name}: b={rows} {length}={tokens} {tensor.dtype} <{below}")
        return tuple(found)

    def about(self) -> dict[str, Any]:
        return {"class": "ONNX model", "versions": dict(self._artefact.versions), "arguments": [(name, True) for name in self._inputs]}

    def build(self, inputs: Arrays) -> None:
        """Compares the graph as it stands with the graph that ONNX Runtime makes of it."""
        given = self._given(inputs)
        plain = dict(zip(self._graph.outputs, self._session.run(self._graph.outputs, given), strict=True))
        optimised = self._artefact.run("forward", given)
        if not behaviour.same(*([each[name] for name in self._graph.outputs] for each in (plain, optimised))):
            self.notes += ("the graph that ONNX Runtime optimises gives other numbers than the one that is compared here",)

    def widen(self, inputs: Arrays) -> None:
        raise ValueError("a file computes in the dtype that it was exported in")

    def _given(self, inputs: Arrays) -> Arrays:
        found = arguments.placed(dict.fromkeys(self._inputs, True), arguments.of_decoder(self._inputs, inputs))
        return {name: np.asarray(array, self._inputs[name].dtype) for name, array in found.items()}

    def layers(self) -> list[Layer]:
        found = []
        for scope in self._scopes.values():
            epsilon = self._graph.epsilon(scope)
            scalars = {} if epsilon is None else {"eps": epsilon}
            found.append(Layer(scope.path, kinds.KINDS["torch"].get(scope.type, ""), scope.type, {}, scalars))
        return found

    def variables(self) -> list[Variable]:
        shapes = {name: array.shape for name, array in self._graph.weights.items()}
        return [Variable(name, path, "", "", shapes[weight], True) for name, (weight, path) in self._names.items()]

    def tied(self) -> list[list[str]]:
        """Also a table and its transpose, which exporters write twice."""
        held: dict[tuple[bytes, ...], list[str]] = {}
        for name, (weight, _) in self._names.items():
            array = self._graph.weights[weight]
            bytes_of = {weight.encode()} if array.ndim != 2 else {array.tobytes(), array.T.tobytes()}
            held.setdefault(tuple(sorted(bytes_of)), []).append(name)
        return [names for names in held.values() if len(names) > 1]

    def values(self) -> Arrays:
        return {name: self._graph.weights[weight].astype(np.float32) for name, (weight, _) in self._names.items()}

    def load(self, values: Arrays) -> None:
        raise ValueError("a file keeps its own weights")

    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        given = self._given(inputs)
        names = [*self._graph.outputs, *self._shown]
        self._tensors = given | dict(zip(names, self._session.run(names, given), strict=True))
        calls = [self._call(path, scope.inputs, scope.outputs) for path, scope in self._scopes.items()]
        return [*calls, self._call("", self._graph.inputs, self._graph.outputs)]

    def _call(self, path: str, inputs: Sequence[str], outputs: Sequence[str]) -> LayerCall:
        given, made = ([self._tensors[name] for name in self._told(names)] for names in (inputs, outputs))
        floating = [array for array in made if array.dtype.kind == "f"]
        made = floating or made
        return LayerCall(path, 0, given, made, [None] * len(given), [None] * len(made))

    def _told(self, names: Sequence[str]) -> list[str]:
        """The tensors that are more than shapes, which a graph computes too."""
        return [name for name in names if self._tensors[name].dtype.kind == "f" or self._tensors[name].ndim > 1]

    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        return [guarded(lambda item=item: self._forced(self._scopes[item[0]], item[2])) for item in wanted]  # type: ignore[misc]

    def _forced(self, scope: Scope, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        names = self._told(scope.inputs)
        if len(names) != len(arrays):
            raise ValueError("takes other arrays")
        given = {name: self._tensors[name] for name in scope.inputs}
        given |= {name: np.asarray(array, given[name].dtype) for name, array in zip(names, arrays, strict=True)}
        if scope.path not in self._alone:
            self._alone[scope.path] = _session(self._graph.alone(scope, given))
        made = dict(zip(scope.outputs, self._alone[scope.path].run(scope.outputs, given), strict=True))
        told = [made[name] for name in self._told(scope.outputs)]
        return [array for array in told if array.dtype.kind == "f"] or told

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        raise ValueError("a file has no gradients")

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        raise ValueError("a file is not trained")

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Callable[[], Any]:
        if compiled or what == "step":
            raise ValueError("a file runs in one way, and has no step")
        given = self._given(inputs)
        return lambda: self._artefact.run("forward", given)


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session in which the graph runs as it stands, so that every tensor of it exists."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
