"""An ONNX graph in float64, as far as ONNX Runtime has its operators so."""

import re
from collections.abc import Collection, Iterator

import onnx
from onnx import TensorProto, helper, numpy_helper

LACKS = re.compile(r"implementation for (\w+)\(")  # what ONNX Runtime says of an operator that it has in float32 alone
MADE_OF = {"Erf": "Gelu"}  # operators that ONNX Runtime writes out where it lacks them
TYPED = ("to", "dtype")  # attributes that name a dtype


def widened(model: onnx.ModelProto, single: Collection[str] = ()) -> onnx.ModelProto:
    """Returns the model with its float32 as float64. single: operators of one input that compute in float32 all the same."""
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
    """Yields what stands for a node: itself, or with its casts. They belong to the same scopes."""
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
