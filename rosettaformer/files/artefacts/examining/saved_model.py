"""Examines SavedModels: their graph, its functions, and the files of the variables.

SavedModels are programs: their graphs can read and write files, call Python and reach the network.
Therefore every operation must be registered by TensorFlow and must only compute. Data sets are
rejected, and so are operations with an effect or a state, except for `STATEFUL`. Every SavedModel
contains operations that save and restore variables; no function of the model may reach them.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import op_def_pb2, tensor_pb2, types_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from ....common.memory import physical_memory

# Operations with state that models need: variables, tables, lists, random numbers, control flow.
STATEFUL = {
    "VarHandleOp", "VarIsInitializedOp", "ReadVariableOp", "AssignVariableOp", "DisableCopyOnRead", "VariableShape", "ResourceGather",
    "ResourceGatherNd", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatterUpdate", "ResourceScatterNdUpdate",
    "ResourceStridedSliceAssign", "VariableV2", "Variable", "StatefulPartitionedCall", "If", "While", "Case", "Assert", "Print", "PrintV2",
    "CheckNumerics", "CheckNumericsV2", "GuaranteeConst", "Empty", "DeepCopy", "DeviceIndex", "StatelessRandomGetAlg", "RandomUniform",
    "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "Multinomial", "RandomShuffle", "RngReadAndSkip", "RngSkip",
    "StatefulUniform", "StatefulUniformInt", "StatefulStandardNormalV2", "StatefulTruncatedNormal", "TensorArrayV3", "TensorArrayReadV3",
    "TensorArrayWriteV3", "TensorArraySizeV3", "TensorArrayGatherV3", "TensorArrayScatterV3", "TensorArrayConcatV3",
    "TensorArraySplitV3", "TensorArrayCloseV3", "StackV2", "StackPushV2", "StackPopV2", "StackCloseV2", "HashTableV2",
    "MutableHashTableV2", "LookupTableFindV2", "LookupTableSizeV2", "LookupTableInsertV2", "LookupTableImportV2", "LookupTableExportV2",
    "_Arg", "_Retval",
}  # fmt: skip
# Operations of the saver, which runs when a SavedModel is written, but not when it is opened.
SAVER = {"SaveV2", "RestoreV2", "MergeV2Checkpoints"}
# Operations without state that read files, call Python or reach another process: recognized by the
# names of their text arguments, or listed.
NAMING = re.compile(r"file|path|url|address|token|source|region|debug_ops|module|target")
REACHING = {"MatchingFiles", "Abort"}
STREAMS = ("stderr", "stdout", "log(info)", "log(warning)", "log(error)")  # allowed for PrintV2; others are files


def examine(path: Path) -> tuple[Any, set[str]]:
    """Returns the graph to serve, and the operations that calls to it may run.

    Raises an error, mostly ValueError, if the folder is damaged or does more than compute.
    """
    every = parsed(path).meta_graphs
    graph = next((each for each in every if "serve" in each.meta_info_def.tags), None)
    if graph is None:
        tags = ", ".join(" ".join(each.meta_info_def.tags) for each in every)
        raise ValueError(f"it must have a graph with the tag serve; got {tags or 'none'}")
    functions = {function.signature.name: function for function in graph.graph_def.library.function}
    _check_operations(graph.graph_def.node, "its graph", SAVER)
    reached = _reached(graph, functions)
    for name, function in functions.items():
        _check_operations(function.node_def, f"its function {name}", set() if name in reached else SAVER)
    _check_variables(path, graph)
    nodes = [*graph.graph_def.node, *(node for name in reached for node in functions[name].node_def)]
    return graph, {node.op for node in nodes}


def parsed(path: Path) -> Any:
    """Parses the folder's SavedModel message."""
    found = saved_model_pb2.SavedModel()
    if (file := path / "saved_model.pb").is_file():
        found.ParseFromString(file.read_bytes())
    else:
        text_format.Parse((path / "saved_model.pbtxt").read_text(encoding="utf-8"), found)
    return found


def bodies(graph: Any) -> dict[str, str]:
    """Identifies what each signature runs: the wrapped function and its variables."""
    functions = {function.signature.name: function for function in graph.graph_def.library.function}
    nodes = {node.name: node for node in graph.graph_def.node}
    found = {}
    for name, signature in graph.signature_def.items():
        calls = [nodes.get(output.name.partition(":")[0]) for output in signature.outputs.values()]
        call = calls[0] if len({id(one) for one in calls}) == 1 else None
        if call and (wrapper := functions.get(call.attr["f"].func.name)):
            held = [own for own in call.input if not own.startswith(f"{name}_")]
            inner = [node.attr["f"].func.name for node in wrapper.node_def if node.attr["f"].func.name]
            found[name] = " ".join([*inner, *held]) if inner else ""
    return found


def _check_operations(nodes: Iterable[Any], where: str, saver: set[str]) -> None:
    """Raises ValueError on operations that do more than compute, and on constants beyond memory.

    saver: the saver's operations that are allowed here.
    """
    for node in nodes:
        known = op_def_registry.get(node.op)
        if known is None:
            raise ValueError(f"every operation must be one of TensorFlow's; {where} has {node.op}")
        if not _computes(known, node, saver):
            raise ValueError(f"operations must not access files, run Python or reach other processes; {where} has {node.op}")
        for name, value in node.attr.items():
            if value.HasField("tensor"):
                _check_constant(value.tensor, f"{node.name}.{name} of {where}")


def _computes(known: op_def_pb2.OpDef, node: Any, saver: set[str]) -> bool:
    name = known.name
    if name == "PrintV2":
        return node.attr["output_stream"].s.decode(errors="replace") in ("", *STREAMS)
    texts = [one.name for one in known.attr if one.type in ("string", "list(string)")]
    texts += [one.name for one in known.input_arg if one.type == types_pb2.DT_STRING]
    if name in REACHING or "Dataset" in name or any(map(NAMING.search, texts)):
        return False
    return not known.is_stateful or name in STATEFUL or name in saver


def _check_constant(tensor: tensor_pb2.TensorProto, where: str) -> None:
    """Raises ValueError on a constant of the wrong size; a single value may fill it."""
    count = math.prod(dim.size for dim in tensor.tensor_shape.dim)
    size = tf.as_dtype(tensor.dtype).size or 1
    if count < 0 or count * size > physical_memory():
        raise ValueError(f"every constant must fit into memory; {where} has {count} elements")
    if tensor.tensor_content and len(tensor.tensor_content) != count * size:
        raise ValueError(f"the constant {where} needs {count * size} bytes; got {len(tensor.tensor_content)}")


def _reached(graph: Any, functions: Mapping[str, Any]) -> set[str]:
    """Returns the functions that signatures, or objects restored on opening, may call."""
    objects = graph.object_graph_def
    left = list(objects.concrete_functions)
    saving = {graph.saver_def.save_tensor_name, graph.saver_def.restore_op_name}
    for node in graph.graph_def.node:
        if not saving & {node.name, f"{node.name}:0"}:
            left += _called(node)
    found: set[str] = set()
    while left:
        if (name := left.pop()) in functions and name not in found:
            found.add(name)
            left += [other for node in functions[name].node_def for other in _called(node)]
    return found


def _called(node: Any) -> Iterator[str]:
    """Yields the functions named by a node."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (each.name for each in value.list.func)


def _check_variables(path: Path, graph: Any) -> None:
    """Raises ValueError if the files of the variables are missing or too small.

    TensorFlow itself reports a missing variable before it runs anything.
    """
    if not any(node.HasField("variable") for node in graph.object_graph_def.nodes):
        return
    place = path / "variables" / "variables"
    if not place.with_suffix(".index").is_file():
        raise ValueError(f"the file of its variables, {place}.index, is missing; copy the whole folder")
    held = tf.train.load_checkpoint(str(place))
    shapes, dtypes = held.get_variable_to_shape_map(), held.get_variable_to_dtype_map()
    needed = sum(math.prod(shape) * (dtypes[name].size or 1) for name, shape in shapes.items())
    there = sum(file.stat().st_size for file in place.parent.glob("variables.data-*"))
    if needed > there:
        raise ValueError(f"its variables need {needed} bytes; the files have {there}. Copy the folder again")
