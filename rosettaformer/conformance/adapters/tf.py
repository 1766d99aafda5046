"""TensorFlow: cases for Keras layers, tf.Modules and plain functions."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
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
from . import matching
from .tapping import Call, Force, Recorder, Tensors, canonical_gradients, intercepted, native_variables

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
        with tf.device(device), _float32_matmul(tf32=case.device == "cuda-tf32"), _unsupported():
            module, inputs = self._built(case, device)
            if case.mode == "compiled":
                module = getattr(self.port, "compiled", _compiled)(module)
            return tf.nest.map_structure(weights.to_numpy, module(**inputs))

    def taps(self, case: Case, forces: Sequence[Force | None] = (None,)) -> list[dict[str, dict[str, Any]]]:
        """What every submodule that has a canonical path was given and gave, by path: one eager run for each force, on one model.

        forces: None is a free run; otherwise the one component that is given other inputs, and these. Errors as `run`.
        """
        device = _device(case.device)
        with tf.device(device), _float32_matmul(tf32=case.device == "cuda-tf32"), _unsupported(), _eagerly():
            module, inputs = self._built(case, device)
            modules = matching.submodules(module, case, getattr(self.port, "taps", ()), (keras.layers.Layer, tf.Module))
            results = []
            for force in forces:
                with tf.GradientTape() as tape:
                    recorder = Recorder(modules, self._tensors(module, case, tape), force)
                    with intercepted(recorder):
                        results.append(recorder.run(module, _unsupported()(module.__call__), inputs))
            return results

    def _tensors(self, module: Any, case: Case, tape: tf.GradientTape) -> Tensors:
        table = getattr(self.port, "weights", weights.TABLE)

        def leaf(tensor: tf.Tensor) -> tf.Tensor:
            tape.watch(tensor)
            return tensor

        def gradients(call: Call, output: tf.Tensor, cotangent: np.ndarray) -> dict[str, dict[Any, np.ndarray]]:
            leaves = {index: tensor for index, tensor in call.leaves.items() if tensor.dtype.is_floating}
            variables = {name: getattr(variable, "value", variable) for name, variable in native_variables(module, case, table).items()}
            sought = [*leaves.values(), *variables.values()]
            found = tape.gradient(output, sought, tf.cast(weights.from_numpy(cotangent), output.dtype), tf.UnconnectedGradients.ZERO)
            arrays = [weights.to_numpy(gradient) for gradient in found]
            native = dict(zip(variables, arrays[len(leaves) :], strict=True))
            inputs = dict(zip(leaves, arrays, strict=False))
            return {"inputs": inputs, "parameters": canonical_gradients(native, case, table)}

        return Tensors(
            is_tensor=lambda value: isinstance(value, (tf.Tensor, tf.Variable)),
            to_numpy=weights.to_numpy,
            like=lambda array, tensor: tf.cast(weights.from_numpy(array, tensor.device), tensor.dtype),
            leaf=leaf,
            gradients=gradients,
        )

    def _built(self, case: Case, device: str) -> tuple[Any, dict[str, Any]]:
        """The component with its parameters, and the arguments of its call."""
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
        return module, inputs

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


@contextmanager
def _unsupported() -> Iterator[None]:
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
        for pattern in NO_KERNEL:
            if found := re.search(pattern, str(error)):
                raise Unsupported(found[1]) from error
        raise


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
def _eagerly() -> Iterator[None]:
    """Functions of the port that are graphs run eagerly, so that what passes through the modules has values."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextmanager
def _float32_matmul(tf32: bool) -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
