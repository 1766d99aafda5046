"""A side that is an ONNX file, run by ONNX Runtime with its own weights.

It has no gradients. In float64, operators that ONNX Runtime lacks run in float32.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ...common.modules import arguments
from ...common.modules.nests import splits
from ...files.artefacts.examining.onnx_model import whole
from ...files.artefacts.opening import open_artefact
from .. import kinds
from . import behaviour
from .base import Arrays, Layer, LayerCall, Model, Variable, guarded
from .onnx_scopes import Graph, Scope

ROWS, LENGTH = 2, 7  # shape of random tokens, unless the file fixes it
LARGEST = 2**31 - 1  # maximum size of a protobuf message, in bytes


class _Running:
    """A graph with a session that outputs every tensor that enters or leaves a scope."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = Graph(model)
        tensors = dict.fromkeys(name for scope in self.graph.scopes.values() for name in (*scope.inputs, *scope.outputs))
        self._names = [*self.graph.outputs, *(name for name in tensors if name not in (*self.graph.outputs, *self.graph.inputs))]
        self._session = _session(self.graph.showing(self._names))
        self._alone: dict[str, onnxruntime.InferenceSession] = {}
        self._tensors: Arrays = {}

    def run(self, given: Arrays) -> list[LayerCall]:
        self._tensors = given | dict(zip(self._names, self._session.run(self._names, given), strict=True))
        calls = [self._call(path, scope.inputs, scope.outputs) for path, scope in self.graph.scopes.items()]
        return [*calls, self._call("", self.graph.inputs, self.graph.outputs)]

    def _call(self, path: str, inputs: Sequence[str], outputs: Sequence[str]) -> LayerCall:
        given, made = ([self._tensors[name] for name in self._told(names)] for names in (inputs, outputs))
        made = _floating(made)
        return LayerCall(path, 0, given, made, [None] * len(given), [None] * len(made))

    def _told(self, names: Sequence[str]) -> list[str]:
        """Returns the names of data tensors, without the shapes that a graph computes, too."""
        return [name for name in names if self._tensors[name].dtype.kind == "f" or self._tensors[name].ndim > 1]

    def forced(self, scope: Scope, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Repeats the last call of a scope on other inputs."""
        names = self._told(scope.inputs)
        if len(names) != len(arrays):
            raise ValueError(f"it takes {len(names)} arrays; got {len(arrays)}")
        given = {name: self._tensors[name] for name in scope.inputs}
        for name, array in zip(names, arrays, strict=True):
            fits = array.shape != given[name].shape and splits(array.shape, given[name].shape)  # heads and their features
            given[name] = np.asarray(array.reshape(given[name].shape) if fits else array, given[name].dtype)
        if scope.path not in self._alone:
            self._alone[scope.path] = _session(self.graph.alone(scope, given))
        made = dict(zip(scope.outputs, self._alone[scope.path].run(scope.outputs, given), strict=True))
        return _floating([made[name] for name in self._told(scope.outputs)])


class OnnxModel(Model):
    """An ONNX file.

    Its layers are the scopes of its nodes, its variables the initializers that they read.

    Raises ValueError if the file is damaged or cannot be split, and `artefacts.opening.Absent`.
    """

    framework = "onnx"

    def __init__(self, path: Path) -> None:
        self._artefact = open_artefact(path)
        self._inputs = {tensor.name: tensor for tensor in self._artefact.entries["forward"].inputs}
        model = whole(path)
        if model.ByteSize() > LARGEST:
            raise ValueError(f"{path} is larger than 2 GiB, so its layers are not accessible; use `rosettaformer check` for its outputs")
        self._running = {"float32": _Running(model)}
        self._graph = self._running["float32"].graph
        self._names: dict[str, tuple[str, str]] = {}  # a weight gets another name in each further scope that reads it
        for weight, paths in self._graph.owners.items():
            self._names |= {weight if path == paths[0] else f"{weight} in {path}": (weight, path) for path in paths}
        self.defaults = self._suggested()
        self.notes = ("an ONNX file has no gradients and no training; only outputs and layers are compared",)
        if half := sorted({array.dtype.name for array in self._graph.weights.values()} - {"float32", "float64"}):
            self.notes += (f"the file has weights in {' and '.join(half)}, whose rounding counts as a difference",)

    def _suggested(self) -> tuple[str, ...]:
        """Returns declarations of random tokens; none if they cannot be derived from the file."""
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
        """Compares the graph with the one that ONNX Runtime optimizes."""
        given = self._given(inputs)
        plain, optimised = self._running["float32"].run(given)[-1].outputs, self._artefact.run("forward", given)
        if not behaviour.same(plain, _floating([optimised[name] for name in self._graph.outputs])):
            self.notes += ("the graph optimized by ONNX Runtime outputs different numbers; the unoptimized graph is compared",)

    def widen(self, inputs: Arrays) -> None:
        single: set[str] = set()
        while "float64" not in self._running:
            try:
                self._running["float64"] = _Running(widened(self._graph.model, single))
            except Exception as error:
                lacks = LACKS.search(str(error))
                if not lacks or lacks[1] in single:
                    raise
                single |= {lacks[1], MADE_OF.get(lacks[1], lacks[1])}
        if held := sorted(single & {node.op_type for node in self._graph.model.graph.node}):
            self.notes += (f"ONNX Runtime computes {', '.join(held)} only in float32",)
        self._running["float64"].run(self._given(inputs, "float64"))

    def _given(self, inputs: Arrays, dtype: str = "float32") -> Arrays:
        found = arguments.placed(dict.fromkeys(self._inputs, True), arguments.of_decoder(self._inputs, inputs))
        dtypes = {name: tensor.dtype if tensor.dtype != "float32" else dtype for name, tensor in self._inputs.items()}
        return {name: np.asarray(array, dtypes[name]) for name, array in found.items()}

    def layers(self) -> list[Layer]:
        found = []
        for scope in self._graph.scopes.values():
            epsilon = self._graph.epsilon(scope)
            scalars = {} if epsilon is None else {"eps": epsilon}
            found.append(Layer(scope.path, kinds.KINDS["torch"].get(scope.type, ""), scope.type, {}, scalars))
        return found

    def variables(self) -> list[Variable]:
        shapes = {name: array.shape for name, array in self._graph.weights.items()}
        return [Variable(name, path, "", "", shapes[weight], True) for name, (weight, path) in self._names.items()]

    def tied(self) -> list[list[str]]:
        """Returns tied names, also of a table and its transpose, which exporters write twice."""
        held: dict[tuple[bytes, ...], list[str]] = {}
        for name, (weight, _) in self._names.items():
            array = self._graph.weights[weight]
            bytes_of = {weight.encode()} if array.ndim != 2 else {array.tobytes(), array.T.tobytes()}
            held.setdefault(tuple(sorted(bytes_of)), []).append(name)
        return [names for names in held.values() if len(names) > 1]

    def values(self) -> Arrays:
        return {name: self._graph.weights[weight].astype(np.float32) for name, (weight, _) in self._names.items()}

    def load(self, values: Arrays) -> None:
        raise ValueError("an ONNX file keeps its own weights")

    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        return self._running[dtype].run(self._given(inputs, dtype))

    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        running = self._running[dtype]
        return [guarded(lambda item=item: running.forced(running.graph.scopes[item[0]], item[2])) for item in wanted]  # type: ignore[misc]

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        raise ValueError("an ONNX file has no gradients")

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        raise ValueError("an ONNX file cannot be trained")

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Callable[[], Any]:
        if compiled or what == "step":
            raise ValueError("an ONNX file has one mode and no training step")
        given = self._given(inputs)
        return lambda: self._artefact.run("forward", given)


def _floating(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the floating-point arrays, or all if there are none."""
    return [array for array in arrays if array.dtype.kind == "f"] or arrays


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Returns a session without graph optimization, so that every tensor exists."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


LACKS = re.compile(r"implementation for (\w+)\(")  # error of ONNX Runtime on an operator without float64
MADE_OF = {"Erf": "Gelu"}  # operators that ONNX Runtime expands if it lacks them
TYPED = ("to", "dtype")  # attributes that name a dtype


def widened(model: onnx.ModelProto, single: Collection[str] = ()) -> onnx.ModelProto:
    """Returns the model with float64 instead of float32.

    single: operators with one input that stay in float32.
    """
    found = onnx.ModelProto()
    found.CopyFrom(model)
    _widen(found.graph, single)
    return found


def _widen(graph: onnx.GraphProto, single: Collection[str]) -> None:
    del graph.value_info[:]
    for held in graph.initializer:
        _tensor(held)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    nodes = [one for node in graph.node for one in _nodes(node, single)]
    del graph.node[:]
    graph.node.extend(nodes)


def _nodes(node: onnx.NodeProto, single: Collection[str]) -> Iterator[onnx.NodeProto]:
    """Yields a widened node, with casts around it if it stays in float32, in the same scopes."""
    for one in node.attribute:
        if one.name in TYPED and one.i == TensorProto.FLOAT:
            one.i = TensorProto.DOUBLE
        elif one.name.startswith("value_float"):
            sizes, values = ([len(one.floats)], [*one.floats]) if one.floats else ([], [one.f])
            held = helper.make_tensor("", TensorProto.FLOAT, sizes, values)
            one.CopyFrom(helper.make_attribute("value", held))
        if one.HasField("t"):
            _tensor(one.t)
        for body in [one.g] if one.HasField("g") else one.graphs:
            _widen(body, single)
    if node.op_type not in single or len(node.input) != 1:
        yield node
        return
    given, made = node.input[0], node.output[0]
    node.input[0], node.output[0] = f"{made} narrow input", f"{made} narrow"
    for cast, between, dtype in ((given, node.input[0], TensorProto.FLOAT), (node.output[0], made, TensorProto.DOUBLE)):
        if between == made:
            yield node
        added = helper.make_node("Cast", [cast], [between], name=f"{node.name} to {dtype}" if node.name else "", to=dtype)
        added.metadata_props.extend(node.metadata_props)
        yield added


def _tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float64"), tensor.name))
