"""TensorFlow: cases for Keras layers, tf.Modules and plain functions."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

from impl_tf import weights

from ..case import Case
from ..port import Unsupported

__all__ = ["Adapter"]

# How TensorFlow and XLA say that an operation has no kernel for a dtype on a device; the group is the operation.
NO_KERNEL = (
    r"Could not find device for node: \{\{node (\w+)\}\}",
    r"No OpKernel was registered to support Op '(\w+)'",
    r"No registered '(\w+)' OpKernel for",
    r"Detected unsupported operations when trying to compile graph .*?: (\w+)",
)


class Adapter:
    """Runs cases on a port that gives `components`, builders of layers or functions; `weights` and `compiled` are optional."""

    def __init__(self, port: Any) -> None:
        self.port = port

    def run(self, case: Case) -> Any:
        """The outputs of the case as NumPy arrays, in evaluation mode. Raises ValueError where the device is missing, and Unsupported."""
        device = _device(case.device)
        with tf.device(device), _float32_matmul(tf32=case.device == "cuda-tf32"):
            try:
                return self._run(case, device)
            except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
                for pattern in NO_KERNEL:
                    if found := re.search(pattern, str(error)):
                        raise Unsupported(found[1]) from error
                raise

    def _run(self, case: Case, device: str) -> Any:
        module = self.port.components[case.component](case.config, tf.as_dtype(case.dtype))
        inputs = {
            name: weights.from_numpy(value, device) if isinstance(value, np.ndarray) else value for name, value in case.inputs.items()
        }
        if isinstance(module, keras.layers.Layer):
            inputs["training"] = False
        if case.parameters:
            if not getattr(module, "built", True):
                module(**inputs)  # a layer may learn the shapes of its weights from its inputs
            table = getattr(self.port, "weights", weights.TABLE)
            weights.load(module, case.parameters, case.config, case.component, table)
        if case.mode == "compiled":
            module = getattr(self.port, "compiled", _compiled)(module)
        return tf.nest.map_structure(weights.to_numpy, module(**inputs))

    @staticmethod
    def describe() -> dict[str, Any]:
        """Versions, devices and the precision of float32 matrix products."""
        gpus = tf.config.list_physical_devices("GPU")
        names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        return {
            "version": {"tensorflow": tf.__version__, "keras": keras.__version__},
            "devices": ["cpu", *(f"cuda: {name}" for name in names)],
            "precision": "TF32 where the GPU has it" if tf32 else "float32",
        }


def _compiled(module: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(lambda **inputs: module(**inputs), autograph=False)


def _device(name: str) -> str:
    if name == "cpu":
        return "/CPU:0"
    if name not in ("cuda", "cuda-tf32"):
        raise ValueError(f"device must be cpu, cuda or cuda-tf32; got {name!r}")
    if not tf.config.list_physical_devices("GPU"):
        raise ValueError(f"device {name} needs a GPU that TensorFlow sees; it sees none")
    return "/GPU:0"


@contextmanager
def _float32_matmul(tf32: bool) -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
