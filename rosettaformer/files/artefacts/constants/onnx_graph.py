"""Reads the constants of ONNX models with the package onnx."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import inliner, numpy_helper

from ..examining.onnx_model import bring, every_node
from .reading import CONTRIBUTED, DRAWS, DROPS, NORMS, Constants

_QUANTISED = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
_SMALL = 4096
# ONNX Runtime's operators with a finite mask value, and its default
_FILTERING = {"Attention", "QAttention", "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention",
              "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention"}  # fmt: skip
_FILTER = -10000.0
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
_TRAINED = 3  # most outputs of BatchNormalization in inference; older versions trained if there were more
SCOPES = "pkg.torch.onnx.name_scopes"  # metadata of torch's exporter: the modules around a node


def read(path: Path, found: Constants) -> None:
    """Records the constants of a file, with functions inlined, and of small external tensors."""
    model = onnx.load(str(path), load_external_data=False)
    if model.functions:
        _give_defaults(model)
        model = inliner.inline_local_functions(model)
    _Reader(path, found, {opset.domain: opset.version for opset in model.opset_import}).graph(model.graph, "", {})
    found.entries["forward"] = [one.name for one in model.graph.output]
    given = {tensor.name for tensor in model.graph.initializer}
    for one in model.graph.input:
        if one.name not in given:
            found.input(side.dim_value if side.HasField("dim_value") else None for side in one.type.tensor_type.shape.dim)


def _give_defaults(model: onnx.ModelProto) -> None:
    """Adds omitted attributes to calls of functions, since onnx's inliner does not."""
    defaults = {(one.domain, one.name): one.attribute_proto for one in model.functions}
    for node in (node for part in (model.graph, *model.functions) for node in every_node(part.node)):
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(one for one in defaults.get((node.domain, node.op_type), ()) if one.name not in given)


class _Reader:
    def __init__(self, path: Path, found: Constants, versions: dict[str, int]) -> None:
        self.path, self.found, self.versions = path, found, versions
        self.tensors: dict[str, onnx.TensorProto] = {}
        self.quantised: set[str] = set()

    def graph(self, graph: onnx.GraphProto, inside: str, outer: Mapping[str, str]) -> None:
        """Records a graph. inside: its branch or body. outer: places of the outer tensors, by name.

        Branches may use the same name for equal or for different tensors.
        """
        places, products = dict(outer), list[tuple[str, bool]]()
        self.found.products.append(products)
        for tensor in graph.initializer:
            same = self.tensors.setdefault(tensor.name, tensor) == tensor
            places[tensor.name] = tensor.name if same else f"{tensor.name} in {inside}"
            self.tensor(tensor, places[tensor.name], tensor.name)
            if tensor.data_type in _QUANTISED and np.prod(tensor.dims) <= _SMALL:
                self.quantised.add(tensor.name)
        for node in graph.node:
            self.node(node, places, products)
        self.found.results[inside] = [one.name for one in graph.output]

    def tensor(self, tensor: onnx.TensorProto, place: str, key: str) -> None:
        dtype, shape = onnx.TensorProto.DataType.Name(tensor.data_type).lower(), tuple(tensor.dims)

        def value() -> np.ndarray:
            bring(self.path, tensor)
            return numpy_helper.to_array(tensor)

        if len(shape) and np.prod(shape, dtype=np.float64) > 1:
            self.found.weight(place, dtype, shape, value, key)
        else:
            self.found.number(place, value(), key)

    def node(self, node: onnx.NodeProto, places: Mapping[str, str], products: list[tuple[str, bool]]) -> None:
        place = node.name or f"{node.op_type} {node.output[0] if node.output else ''}"
        given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        words, bodies = [], []
        for name, value in given.items():
            if isinstance(value, bytes):
                words.append(value.decode(errors="replace"))
            elif isinstance(value, onnx.TensorProto):
                self.tensor(value, place, node.output[0])
            elif isinstance(value, int | float | list) and not _graphs(value):
                self.found.number(place, value, node.output[0] if node.op_type == "Constant" else None)
            for number, graph in enumerate(_graphs(value)):
                bodies.append(f"{place}.{name}" + f" {number}" * (number > 0))
                self.graph(graph, bodies[-1], places)
        self.defaults(node, place)
        self.judged(node, place, given)
        if node.op_type == "DequantizeLinear" and node.input[0] in self.quantised:
            self.found.rounded = True
        if node.op_type in ("MatMul", "Gemm") and places.get(node.input[1]) in self.found.weights:
            products.append((places[node.input[1]], bool(given.get("transB"))))
        random, switches = _random(node, given)
        inputs = [*node.input, *self.filter(node, place, given)]
        self.found.node(node.op_type, place, inputs, node.output, words, bodies=bodies, random=random, switches=switches)

    def filter(self, node: onnx.NodeProto, place: str, given: Mapping[str, Any]) -> list[str]:
        """Records what ONNX Runtime's attention adds to masked scores; returns the number's key."""
        if node.domain != CONTRIBUTED or node.op_type not in _FILTERING:
            return []
        key = f"{place}.mask_filter_value"
        self.found.number(place, np.float32(given.get("mask_filter_value", _FILTER)), key)
        return [key]

    def judged(self, node: onnx.NodeProto, place: str, given: Mapping[str, Any]) -> None:
        """Records the target dtype of a conversion, and the epsilon of a norm."""
        scope = next((one.value for one in node.metadata_props if one.key == SCOPES), "")
        modules = [name for name in scope.split("'")[1::2] if name][:-1]  # the last is the node
        place = modules[-1] if modules else place
        if node.op_type == "Cast":
            self.found.casts.append((place, onnx.TensorProto.DataType.Name(given["to"]).lower()))
        if "epsilon" in given:
            self.found.epsilons.append((place, given["epsilon"]))

    def defaults(self, node: onnx.NodeProto, place: str) -> None:
        """Records the default values of attributes that a node omits."""
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


def _random(node: onnx.NodeProto, given: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns why a node's output is not that of inference, and inputs that may switch it off."""
    if node.op_type in _RANDOM:
        return DRAWS, []
    if node.op_type.endswith("Dropout") and len(node.input) > 2 and node.input[-1]:  # last inputs: ratio, training_mode
        return DROPS, [key for key in node.input[-2:] if key]
    if node.op_type == "BatchNormalization" and (given.get("training_mode") or len(node.output) > _TRAINED):
        return NORMS, []
    return "", []


def _graphs(value: Any) -> list[onnx.GraphProto]:
    """Returns the graphs in an attribute."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, onnx.GraphProto)]
