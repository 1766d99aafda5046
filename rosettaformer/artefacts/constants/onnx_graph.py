"""The constants of an ONNX model, by the package onnx."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from .reading import CONTRIBUTED, LIMIT, Constants

_QUANTISED = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
_SMALL = 4096
_SCOPES = "pkg.torch.onnx.name_scopes"  # the modules within which torch's exporter saw a node


def read(path: Path, found: Constants) -> None:
    """Notes the constants of a file. Tensors in other files are read where they are small."""
    model = onnx.load(str(path), load_external_data=False)
    versions = {opset.domain: opset.version for opset in model.opset_import}
    _Reader(path.parent, found, versions, {(one.domain, one.name): one for one in model.functions}).graph(model.graph, "")
    given = {tensor.name for tensor in model.graph.initializer}
    for one in model.graph.input:
        if one.name not in given:
            found.input(side.dim_value if side.HasField("dim_value") else None for side in one.type.tensor_type.shape.dim)


class _Reader:
    def __init__(self, folder: Path, found: Constants, versions: dict[str, int], functions: dict[tuple[str, str], Any]) -> None:
        self.folder, self.found, self.versions, self.functions = folder, found, versions, functions
        self.seen: set[tuple[str, str]] = set()

    def graph(self, graph: onnx.GraphProto, scope: str) -> None:
        quantised = {tensor.name for tensor in graph.initializer if tensor.data_type in _QUANTISED and np.prod(tensor.dims) <= _SMALL}
        for tensor in graph.initializer:
            self.tensor(tensor, tensor.name, scope + tensor.name)
        for node in graph.node:
            if node.op_type == "DequantizeLinear" and node.input[0] in quantised:
                self.found.rounded = True
        self.nodes(graph.node, scope)

    def tensor(self, tensor: onnx.TensorProto, place: str, key: str) -> None:
        dtype, shape = onnx.TensorProto.DataType.Name(tensor.data_type).lower(), tuple(tensor.dims)
        outside = external_data_helper.uses_external_data(tensor)

        def value() -> np.ndarray:
            if outside:
                external_data_helper.load_external_data_for_tensor(tensor, str(self.folder))
            return numpy_helper.to_array(tensor)

        if len(shape) and np.prod(shape, dtype=np.float64) > 1:
            self.found.weight(place, dtype, shape, value, key)
        elif not (outside and np.prod(shape, dtype=np.float64) > LIMIT):
            self.found.number(place, value(), key)

    def nodes(self, nodes: Iterable[onnx.NodeProto], scope: str) -> None:
        for node in nodes:
            place = node.name or f"{node.op_type} {node.output[0] if node.output else ''}"
            words = []
            for given in node.attribute:
                value = onnx.helper.get_attribute_value(given)
                if isinstance(value, bytes):
                    words.append(value.decode(errors="replace"))
                elif isinstance(value, onnx.TensorProto):
                    self.tensor(value, place, scope + node.output[0])
                elif isinstance(value, onnx.GraphProto):
                    self.graph(value, scope)
                elif isinstance(value, list) and value and isinstance(value[0], onnx.GraphProto):
                    for graph in value:
                        self.graph(graph, scope)
                elif isinstance(value, int | float | list):
                    self.found.number(place, value, scope + node.output[0] if node.op_type == "Constant" else None)
            self.defaults(node, place)
            self.judged(node, place)
            inputs, outputs = ([scope + name if name else "" for name in names] for names in (node.input, node.output))
            self.found.node(node.op_type, place, inputs, outputs, words)

    def judged(self, node: onnx.NodeProto, place: str) -> None:
        """Notes what a node multiplies by, to what it converts, and the epsilon of a norm."""
        given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        scope = next((one.value for one in node.metadata_props if one.key == _SCOPES), "")
        modules = [name for name in scope.split("'")[1::2] if name][:-1]  # the last is the node
        place = modules[-1] if modules else place
        if node.op_type in ("MatMul", "Gemm") and node.input[1] in self.found.weights:
            self.found.products.append((node.input[1], bool(given.get("transB"))))
        if node.op_type == "Cast":
            self.found.casts.append((place, onnx.TensorProto.DataType.Name(given["to"]).lower()))
        if "epsilon" in given:
            self.found.epsilons.append((place, given["epsilon"]))

    def defaults(self, node: onnx.NodeProto, place: str) -> None:
        """Notes the numbers that an operator has where its node gives none; reads the function that it may be."""
        if function := self.functions.get((node.domain, node.op_type)):
            if (node.domain, node.op_type) not in self.seen:
                self.seen.add((node.domain, node.op_type))
                self.nodes(function.node, f"{node.domain}.{node.op_type}/")
            return
        try:
            schema = onnx.defs.get_schema(node.op_type, self.versions.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            if node.domain != CONTRIBUTED or not self.found.opaque:
                self.found.opaque = f"{node.domain}.{node.op_type}"
            return
        given = {attribute.name for attribute in node.attribute}
        for name, attribute in schema.attributes.items():
            default = attribute.default_value
            if name not in given and default.type == onnx.AttributeProto.FLOAT:
                self.found.number(place, default.f)
            if name not in given and default.type == onnx.AttributeProto.STRING:
                self.found.operations.add(f"{node.op_type} {default.s.decode()}".lower())
