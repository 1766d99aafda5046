"""LiteRT models, run by its interpreter."""

import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
from ai_edge_litert.interpreter import Interpreter

from ...memory import physical_memory
from ..signature import Artefact, Entry, Tensor

DEFAULTS = ("serving_default", "serve", "main")  # signatures that stand for the whole model where none is called forward
_BUILTIN = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
_TYPES = {value: name.lower() for name, value in vars(schema.TensorType).items() if isinstance(value, int)}
_BITS = {"bool": 8, "string": 8, "resource": 8, "variant": 8, "complex64": 64, "complex128": 128}  # of types whose names do not say it


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Returns the model of a file. Raises ValueError if it is damaged, or has operations that are not LiteRT's own."""
    content = path.read_bytes()
    try:
        _check(content)
        interpreter = Interpreter(model_content=content)
        signatures = interpreter.get_signature_list()
        if not signatures:
            return _Plain(interpreter)
        return _Model(interpreter, signatures)
    except Exception as error:  # whatever the readers of a damaged file raise: struct.error, IndexError, RuntimeError, ...
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} must be a LiteRT model that ai-edge-litert {version('ai-edge-litert')} opens; {why}") from None


class _Model(Artefact):
    """A model with signatures."""

    versions = MappingProxyType({"ai-edge-litert": version("ai-edge-litert")})

    def __init__(self, interpreter: Any, signatures: Mapping[str, Any]) -> None:
        names = {name: name for name in signatures}
        if "forward" not in names:
            default = next((name for name in DEFAULTS if name in names), "")
            names = ({"forward": names.pop(default)} if default else {}) | names
        self._runners = {name: interpreter.get_signature_runner(own) for name, own in names.items()}
        self.entries = {
            name: Entry(name, _tensors(runner.get_input_details()), _tensors(runner.get_output_details()))
            for name, runner in self._runners.items()
        }

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = self._runners[entry](**inputs)
        return found


class _Plain(Artefact):
    """A model without a signature, whose inputs and outputs have the names of their tensors."""

    versions = _Model.versions

    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        self._inputs, self._outputs = (
            {each["name"]: each for each in details} for details in (interpreter.get_input_details(), interpreter.get_output_details())
        )
        self.entries = {"forward": Entry("forward", _tensors(self._inputs), _tensors(self._outputs))}

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        del entry  # there is one
        for name, each in self._inputs.items():
            self._interpreter.resize_tensor_input(each["index"], inputs[name].shape, strict=True)
        self._interpreter.allocate_tensors()
        for name, each in self._inputs.items():
            self._interpreter.set_tensor(each["index"], inputs[name])
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(each["index"]) for name, each in self._outputs.items()}


def _tensors(details: Mapping[str, Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, np.dtype(each["dtype"]).name, _sizes(each)) for name, each in sorted(details.items()))


def _sizes(details: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Returns the sizes of a tensor. The converter gives a size that it does not know as -1 in the signature, and 1 in the shape."""
    signature = details["shape_signature"]
    sizes = signature if len(signature) else details["shape"]
    return tuple("" if size < 0 else int(size) for size in sizes)


def _check(content: bytes) -> None:
    """Raises ValueError, or what the reader of a flatbuffer raises, unless everything that the interpreter reads is in the file."""
    if len(content) < 8 or not schema.Model.ModelBufferHasIdentifier(content, 0):
        raise ValueError("it begins with TFL3 at its fifth byte")
    model = schema.Model.GetRootAs(content)
    if model.ExternalBuffersLength() or model.ExternalBufferGroupsLength():
        raise ValueError("its buffers lie in the file; it names others")
    buffers = [len(_data(model.Buffers(index), content)) for index in range(model.BuffersLength())]
    for place in range(model.OperatorCodesLength()):
        _check_operator(model.OperatorCodes(place))
    if not model.SubgraphsLength():
        raise ValueError("it has a graph; got none")
    for place in range(model.SubgraphsLength()):
        _check_graph(model.Subgraphs(place), buffers, model.OperatorCodesLength())
    for place in range(model.SignatureDefsLength()):
        signature = model.SignatureDefs(place)
        if signature.SubgraphIndex() >= model.SubgraphsLength():
            raise ValueError(f"a signature is of one of its {model.SubgraphsLength()} graphs; got {signature.SubgraphIndex()}")
        count = model.Subgraphs(signature.SubgraphIndex()).TensorsLength()
        for index in [signature.Inputs(at).TensorIndex() for at in range(signature.InputsLength())] + [
            signature.Outputs(at).TensorIndex() for at in range(signature.OutputsLength())
        ]:
            _check_index(index, count)


def _data(buffer: Any, content: bytes) -> Any:
    """Returns the bytes of a buffer, which may lie behind the flatbuffer; those of none are empty."""
    if buffer.Offset() > 1:  # 0 and 1 stand for no place
        if buffer.Offset() + buffer.Size() > len(content):
            raise ValueError(f"a buffer of {buffer.Size()} bytes lies in the file; it begins at {buffer.Offset()} of {len(content)}")
        return content[buffer.Offset() : buffer.Offset() + buffer.Size()]
    return b"" if buffer.DataIsNone() else buffer.DataAsNumpy()


def _check_operator(code: Any) -> None:
    kind = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    if kind == schema.BuiltinOperator.CUSTOM:
        name = (code.CustomCode() or b"without a name").decode(errors="replace")
        what = "one of TensorFlow's (Flex)" if name.startswith("Flex") else "a custom one"
        raise ValueError(f"its operators are LiteRT's own; {name} is {what}")
    if kind == schema.BuiltinOperator.DELEGATE or kind not in _BUILTIN:
        raise ValueError(f"its operators are LiteRT's own; got number {kind}")


def _check_graph(graph: Any, buffers: list[int], codes: int) -> None:
    count = graph.TensorsLength()
    for place in range(count):
        _check_tensor(graph.Tensors(place), buffers)
    for index in _indices(graph, "Inputs"):
        _check_index(index, count)
    for index in _indices(graph, "Outputs"):
        _check_index(index, count)
    for place in range(graph.OperatorsLength()):
        operator = graph.Operators(place)
        if operator.OpcodeIndex() >= codes:
            raise ValueError(f"an operator is one of its {codes}; got {operator.OpcodeIndex()}")
        if operator.LargeCustomOptionsSize():
            raise ValueError("its operators have no options outside the model; one has")
        for which in ("Inputs", "Outputs", "Intermediates"):
            for index in _indices(operator, which):
                _check_index(index, count, optional=which == "Inputs")


def _indices(table: Any, which: str) -> Iterator[int]:
    if not getattr(table, f"{which}IsNone")():
        yield from map(int, getattr(table, f"{which}AsNumpy")())


def _check_index(index: int, count: int, optional: bool = False) -> None:
    if not -int(optional) <= index < count:
        raise ValueError(f"a graph's tensors are numbered from 0 to {count - 1}; got {index}")


def _check_tensor(tensor: Any, buffers: list[int]) -> None:
    """Raises ValueError on a tensor that does not fit into memory, or whose constant has another size than it says."""
    name = (tensor.Name() or b"").decode(errors="replace")
    shape = [] if tensor.ShapeIsNone() else [int(size) for size in tensor.ShapeAsNumpy()]
    kind = _TYPES.get(tensor.Type(), "")
    if not kind or min(shape, default=0) < 0:
        raise ValueError(f"the tensor {name} has a type and sizes; got type {tensor.Type()}, sizes {shape}")
    bits = _BITS.get(kind) or int("".join(letter for letter in kind if letter.isdigit()))
    size = -(-math.prod(shape) * bits // 8)
    if size > physical_memory():
        raise ValueError(f"every tensor fits into memory; {name} has sizes {shape}")
    if tensor.Buffer() >= len(buffers):
        raise ValueError(f"the tensor {name} has one of {len(buffers)} buffers; got {tensor.Buffer()}")
    held = buffers[tensor.Buffer()]
    if held and held != size and kind not in ("string", "resource", "variant") and tensor.Sparsity() is None:
        raise ValueError(f"the tensor {name} has {size} bytes; its buffer has {held}")
