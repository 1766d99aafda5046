"""Examines ONNX models: their graph, their tensors, and the files of external data."""

import graphlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

LIMIT = 2**31 - 1  # bytes of the largest protocol buffer
NODES = 10_000_000  # nodes of the largest graph, after inlining functions
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
# domain -> the library that registers its operators
LIBRARIES = {
    "ai.onnx.contrib": "onnxruntime-extensions",
    "com.microsoft.extensions": "onnxruntime-extensions",
    "mmdeploy": "MMDeploy",
    "trt": "TensorRT",
    "trt.plugins": "TensorRT",
    "org.pytorch.aten": "ONNX Runtime built with ATen",
    "ai.onnx.training": "ONNX Runtime for training",
}
_FIELDS: dict[int, str] = {  # dtype -> the typed field that holds its values
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.COMPLEX64), "float_data"),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.COMPLEX128), "double_data"),
    TensorProto.INT64: "int64_data",
    **dict.fromkeys((TensorProto.UINT32, TensorProto.UINT64), "uint64_data"),
    TensorProto.STRING: "string_data",
}
_BITS: dict[int, int] = {  # dtypes without a size in NumPy
    **dict.fromkeys((TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1), 4),
    **{dtype: 2 for name in ("INT2", "UINT2") if (dtype := getattr(TensorProto, name, None))},
}


def examine(path: Path) -> ModelProto:
    """Returns the model without external data. Raises ValueError if damaged or unsupported."""
    model = _read(path)
    functions = {(one.domain, one.name): one for one in model.functions}
    _operators(path, model, functions)
    for tensor in _tensors(model):
        _tensor(path, tensor)
    try:
        onnx.checker.check_model(_without_files(model) or str(path))
    except onnx.checker.ValidationError as error:
        raise ValueError(f"the graph of {path} is invalid; {_line(error)}") from None
    return model


def whole(path: Path) -> ModelProto:
    """Loads a model including its external data. Raises ValueError like `bring`."""
    model = onnx.load(path, load_external_data=False, format="protobuf")
    for tensor in _tensors(model):
        bring(path, tensor)
    return model


def bring(path: Path, tensor: TensorProto) -> None:
    """Loads a tensor's external data. Raises ValueError if its file must not be read.

    Unlike `onnx.external_data_helper`, it also rejects links to other folders.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    file, offset, size = _external(path, tensor)
    with file.open("rb") as opened:
        opened.seek(offset)
        tensor.raw_data = opened.read(size)
    tensor.data_location = TensorProto.DEFAULT
    tensor.ClearField("external_data")


def _without_files(model: ModelProto) -> ModelProto | None:
    """Returns the model with empty tensors for external ones; None if it has none."""
    if not any(tensor.data_location == TensorProto.EXTERNAL for tensor in _tensors(model)):
        return None
    own = ModelProto()
    own.CopyFrom(model)
    for tensor in _tensors(own):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=b""))
    return own


def _read(path: Path) -> ModelProto:
    with path.open("rb") as file:
        head = file.read(8)
    if head[4:] == b"ORTM":
        raise ValueError(f"{path} is in ONNX Runtime's own format (.ort); use the .onnx file that it was made from")
    if (size := path.stat().st_size) > LIMIT:
        raise ValueError(f"{path} has {size} bytes, but ONNX files end at 2 GB; save its weights as external data")
    if not size:
        raise ValueError(f"{path} is not an ONNX model: it is empty. Export or download it again")
    try:
        model = onnx.load(path, load_external_data=False, format="protobuf")
    except (DecodeError, ValueError) as error:
        raise ValueError(f"{path} is not an ONNX model, or is damaged: {_line(error)}") from None
    if not (model.ir_version and model.opset_import and model.graph.output):
        lacks = "version" if not model.ir_version else "operator set" if not model.opset_import else "graph with outputs"
        raise ValueError(f"{path} is not an ONNX model, or is damaged: it has no {lacks}")
    newest = onnx.defs.onnx_opset_version()
    for one in model.opset_import:
        if one.domain in ("", "ai.onnx") and not 0 < one.version <= newest:
            versions = f"1 to {newest}, which onnx {onnx.__version__} supports"
            raise ValueError(f"the operator set of {path} must be {versions}; got {one.version}. Upgrade onnx, or export an older one")
    return model


def _operators(path: Path, model: ModelProto, functions: dict[tuple[str, str], FunctionProto]) -> None:
    """Raises ValueError on custom operators and on functions that call themselves."""
    bodies = {key: Counter((node.domain, node.op_type) for node in every_node(one.node)) for key, one in functions.items()}
    counts = Counter((node.domain, node.op_type) for node in every_node(model.graph.node))
    called = counts.copy()
    for body in bodies.values():
        called.update(body)
    if custom := sorted(f"{domain}.{name}" for domain, name in called if domain not in DOMAINS and (domain, name) not in functions):
        libraries = {LIBRARIES.get(name.rpartition(".")[0], f"a library that registers {name.rpartition('.')[0]}") for name in custom}
        raise ValueError(f"{path} uses custom operators, which ONNX Runtime lacks: {_some(custom)} would need {_some(sorted(libraries))}")
    calls = {key: [own for own in body if own in functions] for key, body in bodies.items()}
    try:
        order = [*graphlib.TopologicalSorter(calls).static_order()]
    except graphlib.CycleError as error:
        raise ValueError(f"the functions of {path} never end; {error.args[1][0][1]} calls itself") from None
    sizes: dict[tuple[str, str], int] = {}
    for key in order:
        sizes[key] = sum(count * sizes.get(own, 1) for own, count in bodies[key].items())
    if (total := sum(count * sizes.get(own, 1) for own, count in counts.items())) > NODES:
        raise ValueError(f"{path} must have at most {NODES} nodes after inlining its functions; got {total}")


def every_node(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yields every node, including those in branches and loops."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in _graphs(attribute):
                yield from every_node(graph.node)


def _graphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yields every tensor stored in the model."""
    pending: list[GraphProto] = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while pending or nodes:
        if pending:
            graph = pending.pop()
            nodes += graph.node
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                if math.prod(sparse.dims) > LIMIT:
                    raise ValueError(
                        f"a sparse tensor must have at most {LIMIT} values, since ONNX Runtime expands it; got {[*sparse.dims]}"
                    )
                yield from (sparse.values, sparse.indices)
        for attribute in (attribute for node in nodes for attribute in node.attribute):
            pending += _graphs(attribute)
            yield from (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors
        nodes = []


def _tensor(path: Path, tensor: TensorProto) -> None:
    """Raises ValueError unless a tensor has as many bytes as its sizes need."""
    name, shape = tensor.name or "a constant", [*tensor.dims]
    if min(shape, default=0) < 0 or tensor.data_type not in TensorProto.DataType.values() or not tensor.data_type:
        raise ValueError(f"the tensor {name} of {path} must have sizes and a dtype; got {shape}, dtype {tensor.data_type}")
    wanted = _size(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        _external(path, tensor)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != wanted:
            raise ValueError(f"the tensor {name} of {path} needs {wanted} bytes for its sizes {shape}; got {len(tensor.raw_data)}")
    else:
        _typed(path, tensor, name, shape, wanted)


def _size(tensor: TensorProto) -> int:
    """Returns the number of bytes that a tensor's sizes and dtype need."""
    bits = _BITS.get(tensor.data_type) or 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(-(-math.prod(tensor.dims) * bits // 8))


def _typed(path: Path, tensor: TensorProto, name: str, shape: list[int], wanted: int) -> None:
    count, dtype = math.prod(shape), tensor.data_type
    got = len(getattr(tensor, _FIELDS.get(dtype, "int32_data")))
    pairs = dtype in (TensorProto.COMPLEX64, TensorProto.COMPLEX128)  # two values per element
    fits = {2 * count} if pairs else {count, wanted} if dtype in _BITS else {count}
    if got not in fits:
        raise ValueError(f"the tensor {name} of {path} needs {count} values for its sizes {shape}; got {got}")


def _external(path: Path, tensor: TensorProto) -> tuple[Path, int, int]:
    """Returns the file of a tensor, its offset there and its length."""
    name, shape, wanted = tensor.name or "a constant", [*tensor.dims], _size(tensor)
    said = {one.key: one.value for one in tensor.external_data}
    place = said.get("location", "")
    parts = PurePosixPath(place.replace("\\", "/"))
    if not place or parts.is_absolute() or ".." in parts.parts or re.match(r"[A-Za-z]:|\*", place):
        raise ValueError(f"the tensor {name} of {path} must be in the model's folder, with a relative file name; got {place!r}")
    file = path.parent / place
    if not file.is_file():
        raise ValueError(f"the tensor {name} of {path} is in {place}, which is missing; copy it next to the model")
    folder, target = path.parent.resolve(), file.resolve()
    # huggingface_hub's cache may link from `snapshots/REVISION/...` to `blobs`
    caches = [own.parent / "blobs" for own in folder.parents if own.name == "snapshots"]
    if not target.is_relative_to(folder) and target.parent not in caches:
        raise ValueError(f"the tensor {name} of {path} must be in the model's folder; {place} is a link to {target}")
    numbers = [said.get("offset", "0"), said.get("length", str(wanted))]
    if not all(re.fullmatch(r"\d{1,18}", number) for number in numbers):
        raise ValueError(f"the tensor {name} of {path} must have an offset and a length; got {', '.join(numbers)}")
    offset, length = map(int, numbers)
    if length != wanted:
        raise ValueError(f"the tensor {name} of {path} needs {wanted} bytes for its sizes {shape}; its length in {place} is {length}")
    if offset + length > (size := file.stat().st_size):
        raise ValueError(f"the tensor {name} of {path} ends at byte {offset + length} of {place}, which has {size}")
    return file, offset, length


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
