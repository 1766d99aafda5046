"""Runs LiteRT models with LiteRT's interpreter."""

import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
from ai_edge_litert.interpreter import Interpreter

from ....common.memory import physical_memory
from ..signature import Artefact, Entry, Tensor, named

Details = Mapping[str, Mapping[str, Any]]
_BUILTIN = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
_TYPES = {value: name.lower() for name, value in vars(schema.TensorType).items() if isinstance(value, int)}
_BITS = {"bool": 8, "string": 8, "resource": 8, "variant": 8, "complex64": 64, "complex128": 128}  # types without a size in the name


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Opens a LiteRT model. Raises ValueError if it is damaged, or has other operators."""
    content = path.read_bytes()
    try:
        _check(content)
        interpreter = Interpreter(model_content=content)
        return (_Model if interpreter.get_signature_list() else _Plain)(content, interpreter)
    except Exception as error:  # readers of damaged files raise many types: struct.error, IndexError, RuntimeError, ...
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a LiteRT model that ai-edge-litert {version('ai-edge-litert')} can open; {why}") from None


class _Model(Artefact):
    """A model with signatures. If it has variables, each run reopens it to restore them."""

    versions = MappingProxyType({"ai-edge-litert": version("ai-edge-litert")})

    def __init__(self, content: bytes, interpreter: Any) -> None:
        self._content, self._changes = content, _has_variables(schema.Model.GetRootAs(content))
        self._interpreter = interpreter
        self._signatures = named({name: name for name in interpreter.get_signature_list()}) or {"forward": ""}
        self._details = {name: self._said(name) for name in self._signatures}
        self.entries = {name: Entry(name, _tensors(taken), _tensors(given)) for name, (taken, given) in self._details.items()}

    def _said(self, entry: str) -> tuple[Details, Details]:
        """Returns the interpreter's details of a function's inputs and outputs, by name."""
        runner = self._interpreter.get_signature_runner(self._signatures[entry])
        return runner.get_input_details(), runner.get_output_details()

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._changes:
            self._interpreter = Interpreter(model_content=self._content)
        taken, given = self._details[entry]
        found = self._invoke(entry, {name: _stored(taken[name], array) for name, array in inputs.items()})
        return {name: _real(given[name], array) for name, array in found.items()}

    def _invoke(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = self._interpreter.get_signature_runner(self._signatures[entry])(**inputs)
        return found


class _Plain(_Model):
    """A model without signatures; its inputs and outputs have the names of their tensors."""

    def _said(self, entry: str) -> tuple[Details, Details]:
        sides = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        taken, given = ({each["name"]: each for each in side} for side in sides)
        return taken, given

    def _invoke(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        taken, given = self._details[entry]
        for name, each in taken.items():
            self._interpreter.resize_tensor_input(each["index"], inputs[name].shape, strict=True)
        self._interpreter.allocate_tensors()
        for name, each in taken.items():
            self._interpreter.set_tensor(each["index"], inputs[name])
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(each["index"]) for name, each in given.items()}


def _has_variables(model: Any) -> bool:
    graphs = [model.Subgraphs(place) for place in range(model.SubgraphsLength())]
    codes = [model.OperatorCodes(place).BuiltinCode() for place in range(model.OperatorCodesLength())]
    tensors = (graph.Tensors(place) for graph in graphs for place in range(graph.TensorsLength()))
    return schema.BuiltinOperator.VAR_HANDLE in codes or any(tensor.IsVariable() for tensor in tensors)


def _tensors(details: Details) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name, "float32" if _scale(each) else np.dtype(each["dtype"]).name, _sizes(each)) for name, each in sorted(details.items())
    )


def _sizes(details: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Returns the sizes of a tensor. The converter writes unknown sizes as -1 in the signature."""
    signature = details["shape_signature"]
    sizes = signature if len(signature) else details["shape"]
    return tuple("" if size < 0 else int(size) for size in sizes)


def _scale(details: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the scale and zero point of a quantized tensor, otherwise None."""
    said = details["quantization_parameters"]
    if not len(said["scales"]) or np.dtype(details["dtype"]).kind not in "iu":
        return None
    sizes = [1] * len(details["shape"])
    if len(said["scales"]) > 1:
        sizes[said["quantized_dimension"]] = -1
    return said["scales"].astype(np.float64).reshape(sizes), said["zero_points"].reshape(sizes)


def _real(details: Mapping[str, Any], stored: np.ndarray) -> np.ndarray:
    """Dequantizes a tensor."""
    if not (scale := _scale(details)):
        return stored
    return np.asarray((stored.astype(np.float64) - scale[1]) * scale[0], np.float32)


def _stored(details: Mapping[str, Any], real: np.ndarray) -> np.ndarray:
    """Quantizes an array."""
    if not (scale := _scale(details)):
        return real
    limits = np.iinfo(details["dtype"])
    return np.asarray(np.clip(np.rint(real / scale[0] + scale[1]), limits.min, limits.max), details["dtype"])


def _check(content: bytes) -> None:
    """Raises an error, mostly ValueError, if the interpreter would read out of bounds."""
    if len(content) < 8 or not schema.Model.ModelBufferHasIdentifier(content, 0):
        raise ValueError("it must have TFL3 at its fifth byte")
    model = schema.Model.GetRootAs(content)
    if model.ExternalBuffersLength() or model.ExternalBufferGroupsLength():
        raise ValueError("its buffers must be in the file itself; it names other files")
    buffers = [len(_data(model.Buffers(index), content)) for index in range(model.BuffersLength())]
    for place in range(model.OperatorCodesLength()):
        _check_operator(model.OperatorCodes(place))
    if not model.SubgraphsLength():
        raise ValueError("it has no graph")
    for place in range(model.SubgraphsLength()):
        _check_graph(model.Subgraphs(place), buffers, model.OperatorCodesLength())
    for place in range(model.SignatureDefsLength()):
        signature = model.SignatureDefs(place)
        if signature.SubgraphIndex() >= model.SubgraphsLength():
            graphs = model.SubgraphsLength()
            raise ValueError(f"a signature must refer to one of {graphs} graphs; got {signature.SubgraphIndex()}")
        count = model.Subgraphs(signature.SubgraphIndex()).TensorsLength()
        for side in ("Inputs", "Outputs"):
            for at in range(getattr(signature, f"{side}Length")()):
                _check_index(getattr(signature, side)(at).TensorIndex(), count)


def _data(buffer: Any, content: bytes) -> Any:
    """Returns the bytes of a buffer, which may follow the flatbuffer; empty if it has none."""
    if buffer.Offset() > 1:  # 0 and 1 mean that there is no place
        if buffer.Offset() + buffer.Size() > len(content):
            raise ValueError(f"a buffer of {buffer.Size()} bytes exceeds the file; it begins at {buffer.Offset()} of {len(content)}")
        return content[buffer.Offset() : buffer.Offset() + buffer.Size()]
    return b"" if buffer.DataIsNone() else buffer.DataAsNumpy()


def _check_operator(code: Any) -> None:
    kind = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    if kind == schema.BuiltinOperator.CUSTOM:
        name = (code.CustomCode() or b"without a name").decode(errors="replace")
        what = "TensorFlow's (Flex)" if name.startswith("Flex") else "a custom operator"
        raise ValueError(f"its operators must be LiteRT's own; {name} is {what}")
    if kind == schema.BuiltinOperator.DELEGATE or kind not in _BUILTIN:
        raise ValueError(f"its operators must be LiteRT's own; got number {kind}")


def _check_graph(graph: Any, buffers: list[int], codes: int) -> None:
    count = graph.TensorsLength()
    for place in range(count):
        _check_tensor(graph.Tensors(place), buffers)
    for index in (*_indices(graph, "Inputs"), *_indices(graph, "Outputs")):
        _check_index(index, count)
    for place in range(graph.OperatorsLength()):
        operator = graph.Operators(place)
        if operator.OpcodeIndex() >= codes:
            raise ValueError(f"an operator must be one of {codes}; got {operator.OpcodeIndex()}")
        if operator.LargeCustomOptionsSize():
            raise ValueError("its operators must have their options in the model; one has them elsewhere")
        for which in ("Inputs", "Outputs", "Intermediates"):
            for index in _indices(operator, which):
                _check_index(index, count, optional=which == "Inputs")


def _indices(table: Any, which: str) -> Iterator[int]:
    if not getattr(table, f"{which}IsNone")():
        yield from map(int, getattr(table, f"{which}AsNumpy")())


def _check_index(index: int, count: int, optional: bool = False) -> None:
    if not -int(optional) <= index < count:
        raise ValueError(f"the tensors of a graph are numbered from 0 to {count - 1}; got {index}")


def _check_tensor(tensor: Any, buffers: list[int]) -> None:
    """Raises ValueError on a tensor too large for memory, or on a constant of the wrong size."""
    name = (tensor.Name() or b"").decode(errors="replace")
    shape = [] if tensor.ShapeIsNone() else [int(size) for size in tensor.ShapeAsNumpy()]
    kind = _TYPES.get(tensor.Type(), "")
    if not kind or min(shape, default=0) < 0:
        raise ValueError(f"the tensor {name} must have a known type and sizes; got type {tensor.Type()}, sizes {shape}")
    bits = _BITS.get(kind) or int("".join(letter for letter in kind if letter.isdigit()))
    size = -(-math.prod(shape) * bits // 8)
    if size > physical_memory():
        raise ValueError(f"every tensor must fit into memory; {name} has sizes {shape}")
    if tensor.Buffer() >= len(buffers):
        raise ValueError(f"the tensor {name} must use one of {len(buffers)} buffers; got {tensor.Buffer()}")
    held = buffers[tensor.Buffer()]
    if held and held != size and kind not in ("string", "resource", "variant") and tensor.Sparsity() is None:
        raise ValueError(f"the tensor {name} needs {size} bytes; its buffer has {held}")
