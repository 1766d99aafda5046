"""ONNX models, run by ONNX Runtime on the CPU."""

import ctypes
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto

from ..examining import onnx_model
from ..signature import Artefact, Entry, Tensor

_DTYPES = {"float": "float32", "double": "float64"}  # ONNX Runtime's name -> NumPy's


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Opens an ONNX model with ONNX Runtime's default optimizations.

    Raises ValueError, before the runtime sees it, if the file is damaged or needs more than plain
    ONNX, and if the runtime rejects it.
    """
    onnx_model.examine(path)
    try:
        return _Model(path)
    except Exception as error:  # ONNX Runtime's exceptions share no other base class
        said = " ".join(str(error).rpartition("onnxruntime::")[2].split())  # without the place in its source
        runtime = f"ONNX Runtime {onnxruntime.__version__}"
        raise ValueError(f"{path} cannot be opened: {runtime} rejects it, {said[:300]}") from None


class _Model(Artefact):
    versions = MappingProxyType({name: version(name) for name in ("onnxruntime", "onnx")})

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        taken, given = (tuple(map(_tensor, each)) for each in (self._session.get_inputs(), self._session.get_outputs()))
        self.entries = {"forward": Entry("forward", taken, given)}

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [tensor.name for tensor in self.entries[entry].outputs]
        found = self._session.run_with_ort_values(names, {name: _value(array) for name, array in inputs.items()})
        return {name: _array(value) for name, value in zip(names, found, strict=True)}


def _tensor(given: onnxruntime.NodeArg) -> Tensor:
    dtype = given.type.removeprefix("tensor(").removesuffix(")")
    return Tensor(given.name, _DTYPES.get(dtype, dtype), tuple(size if isinstance(size, int) else size or "" for size in given.shape))


def _value(array: np.ndarray) -> onnxruntime.OrtValue:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype == ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _array(value: onnxruntime.OrtValue) -> Any:
    """Returns an output as an array; bfloat16 by address, since ONNX Runtime has no array."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = tuple(value.shape())
    if 0 in shape:
        return np.zeros(shape, ml_dtypes.bfloat16)
    found = np.ctypeslib.as_array(ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_uint16)), shape)
    return found.copy().view(ml_dtypes.bfloat16)
