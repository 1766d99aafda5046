"""ONNX models, run by ONNX Runtime."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnxruntime

from ..signature import Artefact, Entry, Tensor

_DTYPES = {"float": "float32", "double": "float64"}  # as ONNX Runtime names them -> as NumPy does


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Returns the model of a file. Raises ValueError if the file is damaged or needs what is not ONNX's own."""
    return _Model(path)


class _Model(Artefact):
    versions = MappingProxyType({name: version(name) for name in ("onnxruntime", "onnx")})

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has a class for every kind of failure, and no common one
            why = " ".join(str(error).split())
            raise ValueError(
                f"{path} must be an ONNX model that ONNX Runtime {self.versions['onnxruntime']} opens; it says: {why}"
            ) from None
        described = (tuple(map(_tensor, given)) for given in (self._session.get_inputs(), self._session.get_outputs()))
        self.entries = {"forward": Entry("forward", *described)}

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [tensor.name for tensor in self.entries[entry].outputs]
        return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))


def _tensor(given: onnxruntime.NodeArg) -> Tensor:
    dtype = given.type.removeprefix("tensor(").removesuffix(")")
    return Tensor(given.name, _DTYPES.get(dtype, dtype), tuple(size if isinstance(size, int) else size or "" for size in given.shape))
