"""Reads the constants of LiteRT models: small buffers and the options of operators."""

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..signature import named
from .reading import DRAWS, Constants

try:
    from ai_edge_litert import schema_py_generated as schema
except ImportError:  # TensorFlow has the same module
    from tensorflow.lite.python import schema_py_generated as schema

_DTYPES: dict[int, Any] = {
    schema.TensorType.FLOAT32: np.float32, schema.TensorType.FLOAT16: np.float16, schema.TensorType.FLOAT64: np.float64,
    schema.TensorType.INT8: np.int8, schema.TensorType.UINT8: np.uint8, schema.TensorType.INT16: np.int16,
    schema.TensorType.INT32: np.int32, schema.TensorType.INT64: np.int64, schema.TensorType.BOOL: np.bool_,
    schema.TensorType.BFLOAT16: ml_dtypes.bfloat16,
}  # fmt: skip
_OPERATIONS = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
_FEW = 4096
_DRAWING = {"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR"}


def read(path: Path, found: Constants) -> None:
    """Records the constants of a file."""
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    found.scales_fold = True  # the converter fuses a product after a dense layer into the weights
    for number, graph in enumerate(model.subgraphs):
        for index, tensor in enumerate(graph.tensors):
            _tensor(model, tensor, (number, index), found)
        if number in {signature.subgraphIndex for signature in model.signatureDefs or ()} or number == 0:
            for index in graph.inputs:
                tensor = graph.tensors[index]
                shape = tensor.shapeSignature if tensor.shapeSignature is not None else tensor.shape
                found.input(int(size) for size in (shape if shape is not None else ()))
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            name = _OPERATIONS[max(code.builtinCode, code.deprecatedBuiltinCode)]
            words, bodies = [], []
            for option, value in vars(operator.builtinOptions).items() if operator.builtinOptions is not None else ():
                if isinstance(value, int | float):
                    found.number(name, value)
                    words.append(f"{option}={value}")
                if option.lower().endswith("subgraphindex"):
                    bodies.append(value)
            inputs, outputs = ([(number, int(index)) for index in side if index >= 0] for side in (operator.inputs, operator.outputs))
            place = _name(graph.tensors[outputs[0][1]]) if outputs else name
            found.node(name, place, inputs, outputs, words, bodies=bodies, random=DRAWS * (name in _DRAWING))
        found.results[number] = [(number, int(index)) for index in graph.outputs]
    own = {(one.signatureKey or b"").decode(errors="replace"): found.results[one.subgraphIndex] for one in model.signatureDefs or ()}
    found.entries |= named(own) or {"forward": found.results[0]}


def _name(tensor: Any) -> str:
    return (tensor.name or b"").decode(errors="replace")


def _tensor(model: Any, tensor: Any, key: tuple[int, int], found: Constants) -> None:
    data, dtype = model.buffers[tensor.buffer].data, _DTYPES.get(tensor.type)
    if data is None or not len(data):
        if tensor.buffer and model.buffers[tensor.buffer].offset:
            found.weight(f"buffer {tensor.buffer}", "", tensor.shape, None)
        return
    shape = [int(size) for size in (tensor.shape if tensor.shape is not None else ())]
    name = _name(tensor)
    quantised = tensor.quantization is not None and tensor.quantization.scale is not None and len(tensor.quantization.scale)
    if quantised and math.prod(shape) <= _FEW and dtype in (np.int8, np.uint8, np.int16):
        found.rounded = True
    readable = dtype is not None and not quantised
    value = (lambda: np.frombuffer(np.asarray(data, np.uint8).tobytes(), dtype).reshape(shape)) if readable else None
    if math.prod(shape) > 1:  # subgraphs share buffers
        found.weight(f"buffer {tensor.buffer} {shape}", np.dtype(dtype).name if dtype else "", shape, value, key)
    elif value is not None:
        found.number(name, value(), key)
