"""SavedModels, run by TensorFlow.

TensorFlow says of them that they are programs: their graphs can read and write files, call Python and reach the network. Therefore every
operation of the graph and of its functions is one that computes: none that TensorFlow does not register, no data set, and, of those
with an effect or a state, `STATEFUL` alone. What writes and restores variables is there in every SavedModel, and no function of the model
may reach it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import op_def_pb2, tensor_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from ...memory import physical_memory
from ..signature import Artefact, Entry, Tensor

# Operations with a state that a model has: variables, tables, lists, random numbers, and control of what runs.
STATEFUL = {
    "VarHandleOp", "VarIsInitializedOp", "ReadVariableOp", "AssignVariableOp", "DisableCopyOnRead", "VariableShape", "ResourceGather",
    "ResourceGatherNd", "VariableV2", "Variable", "StatefulPartitionedCall", "If", "While", "Case", "Assert", "Print", "PrintV2",
    "CheckNumerics", "CheckNumericsV2", "GuaranteeConst", "Empty", "DeepCopy", "DeviceIndex", "StatelessRandomGetAlg", "RandomUniform",
    "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "Multinomial", "RandomShuffle", "RngReadAndSkip", "RngSkip",
    "StatefulUniform", "StatefulUniformInt", "StatefulStandardNormalV2", "StatefulTruncatedNormal", "TensorArrayV3", "TensorArrayReadV3",
    "TensorArrayWriteV3", "TensorArraySizeV3", "TensorArrayGatherV3", "TensorArrayScatterV3", "TensorArrayConcatV3",
    "TensorArraySplitV3", "TensorArrayCloseV3", "StackV2", "StackPushV2", "StackPopV2", "StackCloseV2", "HashTableV2",
    "MutableHashTableV2", "LookupTableFindV2", "LookupTableSizeV2", "LookupTableInsertV2", "LookupTableImportV2", "LookupTableExportV2",
    "_Arg", "_Retval",
}  # fmt: skip
# Of the saver, which TensorFlow runs when it writes a SavedModel; nothing runs it when it opens one.
SAVER = {"SaveV2", "RestoreV2", "MergeV2Checkpoints"}
# Without a state, and yet they read files, call Python or another process.
REACHING = {
    "ReadFile", "MatchingFiles", "ImmutableConst", "PyFuncStateless", "GenerateVocabRemapping", "InitializeTableFromTextFile",
    "DebugIdentity", "DebugNanCount", "DebugNumericSummary", "RegisterDataset", "RegisterDatasetV2", "Abort",
}  # fmt: skip
STREAMS = ("stderr", "stdout", "log(info)", "log(warning)", "log(error)")  # of PrintV2, which may name a file
DEFAULTS = ("serving_default", "serve")  # signatures that stand for the whole model where none is called forward


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Returns the model of a folder. Raises ValueError if it is damaged, or does more than compute."""
    try:
        graph = _graph(_parsed(path))
        functions = {function.signature.name: function for function in graph.graph_def.library.function}
        _check_operations(graph.graph_def.node, "its graph", SAVER)
        reached = _reached(graph, functions)
        for name, function in functions.items():
            _check_operations(function.node_def, f"its function {name}", set() if name in reached else SAVER)
        _check_variables(path, graph)
        loaded = tf.saved_model.load(path, tags=list(graph.meta_info_def.tags))
        if not loaded.signatures:
            raise ValueError("it has a signature; got none")
    except Exception as error:  # whatever TensorFlow raises: OpError, AssertionError, DecodeError, ...
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} must be a SavedModel that TensorFlow {tf.__version__} opens; {why}") from None
    return _Model(loaded)


class _Model(Artefact):
    versions = MappingProxyType({"tensorflow": tf.__version__})

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded  # its variables live as long as it does
        named = dict(loaded.signatures.items())
        if "forward" not in named:
            default = next((name for name in DEFAULTS if name in named), "")
            named = ({"forward": named.pop(default)} if default else {}) | named
        self._functions = named
        self.entries = {name: _entry(name, function) for name, function in named.items()}

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with tf.device("CPU"):
            found = self._functions[entry](**{name: tf.constant(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in found.items()}


def _entry(name: str, function: Any) -> Entry:
    given, results = function.structured_input_signature[1], function.structured_outputs
    return Entry(name, _tensors(given), _tensors(results))


def _tensors(specs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, spec.dtype.name, _sizes(spec.shape)) for name, spec in sorted(specs.items()))


def _sizes(shape: tf.TensorShape) -> tuple[int | str, ...]:
    return () if shape.rank is None else tuple("" if size is None else size for size in shape)


def _parsed(path: Path) -> Any:
    """Returns the message in the folder."""
    found = saved_model_pb2.SavedModel()
    if (file := path / "saved_model.pb").is_file():
        found.ParseFromString(file.read_bytes())
    else:
        text_format.Parse((path / "saved_model.pbtxt").read_text(), found)
    return found


def _graph(message: Any) -> Any:
    """Returns the graph that is served."""
    graphs = [each for each in message.meta_graphs if "serve" in each.meta_info_def.tags]
    if not graphs:
        tags = ", ".join(" ".join(each.meta_info_def.tags) for each in message.meta_graphs)
        raise ValueError(f"it has a graph with the tag serve; got {tags or 'none'}")
    return graphs[0]


def _check_operations(nodes: Iterable[Any], where: str, saver: set[str]) -> None:
    """Raises ValueError on operations that do more than compute, and on constants that no memory holds. saver: those of the saver
    that may be here.
    """
    for node in nodes:
        known = op_def_registry.get(node.op)
        if known is None:
            raise ValueError(f"every operation is one of TensorFlow's; {where} has {node.op}")
        if not _computes(known, node, saver):
            raise ValueError(f"no operation reads or writes files, runs Python or reaches other processes; {where} has {node.op}")
        for name, value in node.attr.items():
            if value.HasField("tensor"):
                _check_constant(value.tensor, f"{node.name}.{name} of {where}")


def _computes(known: op_def_pb2.OpDef, node: Any, saver: set[str]) -> bool:
    name = known.name
    if name == "PrintV2":
        return node.attr["output_stream"].s.decode(errors="replace") in ("", *STREAMS)
    if name in REACHING or "Dataset" in name:
        return False
    return not known.is_stateful or name in STATEFUL or name in saver


def _check_constant(tensor: tensor_pb2.TensorProto, where: str) -> None:
    """Raises ValueError on a constant that says another size than it has; one value may stand for all."""
    count = math.prod(dim.size for dim in tensor.tensor_shape.dim)
    size = tf.as_dtype(tensor.dtype).size or 1
    if count < 0 or count * size > physical_memory():
        raise ValueError(f"every constant fits into memory; {where} has {count} elements")
    if tensor.tensor_content and len(tensor.tensor_content) != count * size:
        raise ValueError(f"the constant {where} has {count * size} bytes; got {len(tensor.tensor_content)}")


def _reached(graph: Any, functions: Mapping[str, Any]) -> set[str]:
    """Returns the functions that a signature, or an object of the model when it is opened, may call."""
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
    """Yields the functions that a node names."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (each.name for each in value.list.func)


def _check_variables(path: Path, graph: Any) -> None:
    """Raises ValueError if the files of the variables are not there, or hold fewer bytes than they say.

    TensorFlow says which variable is not among them, before it runs anything.
    """
    if not any(node.HasField("variable") for node in graph.object_graph_def.nodes):
        return
    place = path / "variables" / "variables"
    if not place.with_suffix(".index").is_file():
        raise ValueError(f"its variables lie in {place}.index; there is no such file")
    held = tf.train.load_checkpoint(str(place))
    shapes, dtypes = held.get_variable_to_shape_map(), held.get_variable_to_dtype_map()
    needed = sum(math.prod(shape) * (dtypes[name].size or 1) for name, shape in shapes.items())
    there = sum(file.stat().st_size for file in place.parent.glob("variables.data-*"))
    if needed > there:
        raise ValueError(f"its variables take {needed} bytes; the files have {there}")
