"""The layers of an ONNX graph: scopes recorded by an exporter, with their tensors."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from ...files.artefacts.constants.onnx_graph import SCOPES

CLASSES = "pkg.torch.onnx.class_hierarchy"
OUTSIDE = ("StatefulPartitionedCall", "_empty_nn_module_stack_from_metadata_hook", "")  # scopes that are not layers
WEIGHT = re.compile(r"(.+)[./](weight|bias|kernel|scale|gamma|beta|embeddings?|offset)(:0)?")
ROUTES = ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Clip", "Where", "Flatten")  # operators between ids and a table


@dataclass
class Scope:
    """A layer.

    nodes: in graph order. inputs, outputs: tensors that enter and leave it. type: class or
    operator.
    """

    path: str
    type: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


class Graph:
    """A model's graph with inlined functions.

    scopes: by path, in the order in which they end. weights: floating-point initializers by name.
    owners: paths of the innermost scopes that read each weight.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = inliner.inline_local_functions(model) if model.functions else model
        graph = self.model.graph
        self._held = {one.name: one for one in graph.initializer}
        self.inputs = [one.name for one in graph.input if one.name not in self._held]
        self.outputs = [one.name for one in graph.output]
        known = {*self._held, *(one.values.name for one in graph.sparse_initializer)}
        self._fixed: list[onnx.NodeProto] = []  # nodes that depend on no input
        self._nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            reads = _reads(node)
            fixed = node.op_type == "Constant" or (reads and known.issuperset(reads) and not node.op_type.startswith("Random"))
            (self._fixed if fixed else self._nodes).append(node)
            known.update(node.output if fixed else ())
        self._known = known
        self.weights = {name: numpy_helper.to_array(one) for name, one in self._held.items()}
        self.weights = {name: array for name, array in self.weights.items() if array.dtype.kind == "f" and array.size > 1}
        self.scopes = self._scopes()
        self.owners: dict[str, list[str]] = {}
        for node in (*self._fixed, *self._nodes):
            places = self._places(node)
            for name in filter(self.weights.__contains__, _reads(node)):
                path = places[-1][0] if places else ""
                if path not in self.owners.setdefault(name, []):
                    self.owners[name].append(path)

    def _places(self, node: onnx.NodeProto) -> Sequence[tuple[str, str]]:
        """Returns the scopes of a node and their classes, outermost first: from torch's metadata,
        the node's name, or its weight.

        A node without metadata, created by the exporter's optimizer, is in the innermost scope
        common to its inputs and its readers.
        """
        said = {one.key: re.findall(r"'([^']*)'", one.value) for one in node.metadata_props}
        if SCOPES in said:
            return [each for each in zip(said[SCOPES][:-1], said.get(CLASSES, said[SCOPES]), strict=False) if each[0] not in OUTSIDE]
        if self._tells:
            return self._untold.get(id(node), [])
        parts = [part for part in node.name.partition(";")[0].split("/")[:-1] if part not in OUTSIDE]
        if parts or self._named:
            return [(".".join(parts[: end + 1]), parts[end]) for end in range(len(parts))]
        path = self._stem(self._biased.get(node.output[0], node))
        return [(path, node.op_type)] if path else []

    def _stem(self, node: onnx.NodeProto) -> str:
        """Returns the name of the first weight that a node reads, without its role."""
        weight = next((name for name in node.input if name in self.weights), "")
        stem = WEIGHT.fullmatch(weight)
        return (stem[1] if stem else weight).replace("/", ".")

    def _scopes(self) -> dict[str, Scope]:
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self._nodes:
            for name in _reads(node):
                readers.setdefault(name, []).append(node)
        makers = {name: node for node in self._nodes if _is_told(node) for name in node.output}
        self._tells = bool(makers)
        self._untold: dict[int, Sequence[tuple[str, str]]] = {}
        for node in reversed(self._nodes) if self._tells else ():
            if not _is_told(node) and not {*self.outputs}.intersection(node.output):
                around = [makers[name] for name in _reads(node) if name in makers]
                around += [reader for name in node.output for reader in readers.get(name, ())]
                levels = zip(*map(self._places, around), strict=False)  # common prefix
                shared = itertools.takewhile(lambda level: len({*level}) == 1, levels)
                self._untold[id(node)] = [level[0] for level in shared]
        weighted = [node for node in self._nodes if self._stem(node)]
        sums = {name: node for node in weighted if node.op_type == "Add" for name in node.input}
        products = [node for node in weighted if node.op_type == "MatMul"]
        # products with a weight, followed by adding a bias
        self._biased = {node.output[0]: sums[node.output[0]] for node in products if node.output[0] in sums}
        self._named = any("/" in node.name.strip("/") for node in self._nodes)
        found: dict[str, Scope] = {}
        last: dict[str, int] = {}
        for number, node in enumerate(self._nodes):
            for path, kind in self._places(node):
                found.setdefault(path, Scope(path, kind.rpartition(".")[2])).nodes.append(node)
                last[path] = number
        self._learned_before: set[str] = set()
        self._learned_before = self._learned(Scope("", "", self._fixed))
        takers = {name: set(map(id, several)) for name, several in readers.items()}
        for scope in found.values():
            own, made = {id(node) for node in scope.nodes}, {name for node in scope.nodes for name in node.output}
            reads = dict.fromkeys(name for node in scope.nodes for name in _reads(node))
            scope.inputs = [name for name in reads if name not in made and name not in self._known]
            leaving = [name for node in scope.nodes for name in node.output if name in self.outputs or takers.get(name, set()) - own]
            learned = self._learned(scope)  # other outputs are shared by several layers, such as positions
            scope.outputs = [name for name in leaving if name in learned] or leaving
        return {path: found[path] for path in sorted(found, key=lambda path: (last[path], -path.count(".")))}

    def _learned(self, scope: Scope) -> set[str]:
        """Returns the tensors of a scope that depend on weights."""
        found: set[str] = set()
        for node in scope.nodes:
            if any(name in found or name in self.weights or name in self._learned_before for name in _reads(node)):
                found.update(node.output)
        return found

    def rows(self, name: str) -> int:
        """Returns the rows of the smallest table that an input indexes; 0 without a table."""
        found, reached = [], {name}
        for node in self._nodes:
            if node.op_type in ROUTES and reached.intersection(node.input):
                reached.update(node.output)
            if node.op_type in ("Gather", "GatherElements") and node.input[1] in reached and node.input[0] in self.weights:
                found.append(len(self.weights[node.input[0]]))
        return min(found, default=0)

    def epsilon(self, scope: Scope) -> float | None:
        """Returns the epsilon of a scope: an attribute, or a number added before a square root."""
        added: dict[str, float] = {}
        for node in scope.nodes:
            for attribute in node.attribute:
                if attribute.name == "epsilon":
                    return float(attribute.f)
            if node.op_type == "Add":
                numbers = [value for name in node.input if (value := self._number(name)) is not None]
                added |= dict.fromkeys(node.output, numbers[-1]) if numbers else {}
            if node.op_type in ("Sqrt", "Pow") and node.input[0] in added:
                return added[node.input[0]]
        return None

    def _number(self, name: str) -> float | None:
        if name in self._held:
            tensor = self._held[name]
        else:
            node = next((node for node in self._fixed if node.op_type == "Constant" and name in node.output), None)
            tensor = next((one.t for one in node.attribute if one.name == "value"), None) if node else None
        array = numpy_helper.to_array(tensor) if tensor is not None else np.zeros(0)
        return float(array.reshape(())) if array.size == 1 and array.dtype.kind == "f" else None

    def showing(self, names: Iterable[str]) -> onnx.ModelProto:
        """Returns the model with these tensors as additional outputs."""
        found = onnx.ModelProto()
        found.CopyFrom(self.model)
        have = {*self.outputs}
        found.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
        return found

    def alone(self, scope: Scope, given: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        """Returns a scope as a separate model.

        given: arrays with the ranks and dtypes of its inputs.
        """
        needed = {name for node in scope.nodes for name in _reads(node)}
        fixed: list[onnx.NodeProto] = []
        for node in reversed(self._fixed):
            if needed.intersection(node.output):
                fixed.insert(0, node)
                needed.update(_reads(node))
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(given[name].dtype), [None] * given[name].ndim)
            for name in scope.inputs
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in scope.outputs]
        held = [one for name, one in self._held.items() if name in needed]
        graph = helper.make_graph([*fixed, *scope.nodes], "layer", inputs, outputs, held)
        return helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)


def _is_told(node: onnx.NodeProto) -> bool:
    return any(one.key == SCOPES for one in node.metadata_props)


def _reads(node: onnx.NodeProto) -> list[str]:
    """Returns the tensors that a node and its subgraphs read."""
    return [*filter(None, node.input), *(name for one in node.attribute for body in (one.g, *one.graphs) for name in _free(body))]


def _free(body: onnx.GraphProto) -> Iterator[str]:
    made = {one.name for one in (*body.input, *body.initializer)} | {name for node in body.node for name in node.output}
    yield from (name for node in body.node for name in _reads(node) if name not in made)
    yield from (one.name for one in body.output if one.name not in made)
