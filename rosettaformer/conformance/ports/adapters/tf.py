"""TensorFlow: cases for Keras layers, tf.Modules and plain functions."""

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

from impl_tf import weights
from reference_numpy import layout, parameters

from ...case import Case
from ...reference.components import forward_of
from ..port import Unsupported
from . import matching
from .tracing import Call, Force, Recorder, Tensors, canonical_gradients, intercepted, native_variables

__all__ = ["Adapter"]

Tree = dict[str, dict[Any, Any]]

# How TensorFlow and XLA say that an operation has no kernel for a dtype on a device; the group is the operation.
NO_KERNEL = (
    r"Could not find device for node: \{\{node (\w+)\}\}",
    r"No OpKernel was registered to support Op '(\w+)'",
    r"No registered '(\w+)' OpKernel for",
    r"Detected unsupported operations when trying to compile graph .*?: (\w+)",
)

# What makes variables is no graph: it runs as it is.
NO_GRAPH = ("adam", "initialise", "random_dropout")


class Adapter:
    """Runs cases on a port that gives `components`, builders of layers or functions; `weights` and `compiled` are optional."""

    def __init__(self, port: Any) -> None:
        self.port, self._table = port, getattr(port, "weights", weights.TABLE)

    def run(self, case: Case) -> Any:
        """The outputs of the case as NumPy arrays, in evaluation mode; of a gradient those of a GradientTape.

        Raises ValueError where the device is missing, Unsupported, and NotCovered where a keep mask is given to what takes none.
        """
        device = _device(case.device)
        with tf.device(device), _float32_matmul(tf32=case.device == "cuda-tf32"), _unsupported():
            if forward := forward_of(case.component):
                return self._vjp(dataclasses.replace(case, component=forward), device)
            function, inputs = self._built(case, device)
            return tf.nest.map_structure(weights.to_numpy, self._graph(function, case)(**inputs))

    def trace(self, case: Case, forces: Sequence[Force | None] = (None,)) -> list[dict[str, dict[str, Any]]]:
        """What every submodule that has a canonical path was given and gave, by path: one eager run for each force, on one model.

        forces: None is a free run; otherwise the one component that is given other inputs, and these. Errors as `run`.
        """
        device = _device(case.device)
        with tf.device(device), _float32_matmul(tf32=case.device == "cuda-tf32"), _unsupported(), _eagerly():
            function, inputs = self._built(case, device)
            module = matching.owner(function)
            modules = matching.submodules(module, case, matching.own_paths(self.port), (keras.layers.Layer, tf.Module))
            results = []
            for force in forces:
                with tf.GradientTape() as tape:
                    recorder = Recorder(modules, self._tensors(module, case, tape), force)
                    with intercepted(recorder):
                        results.append(recorder.run(module, _unsupported()(function.__call__), inputs))
            return results

    def _tensors(self, module: Any, case: Case, tape: tf.GradientTape) -> Tensors:
        def leaf(tensor: tf.Tensor) -> tf.Tensor:
            tape.watch(tensor)
            return tensor

        def gradients(call: Call, output: tf.Tensor, cotangent: np.ndarray) -> dict[str, dict[Any, np.ndarray]]:
            leaves = {index: tensor for index, tensor in call.leaves.items() if tensor.dtype.is_floating}
            found = _gradients(tape, output, leaves, native_variables(module, case, self._table), weights.from_numpy(cotangent))
            return _named(found, case, self._table)

        return Tensors(
            is_tensor=lambda value: isinstance(value, (tf.Tensor, tf.Variable)),
            to_numpy=weights.to_numpy,
            like=lambda array, tensor: tf.cast(weights.from_numpy(array, tensor.device), tensor.dtype),
            leaf=leaf,
            gradients=gradients,
        )

    def _vjp(self, case: Case, device: str) -> dict[str, np.ndarray]:
        """The gradients of the sum of cotangent * output: of the floating inputs, and of the parameters by canonical name."""
        function, inputs = self._built(case, device)
        variables = native_variables(matching.owner(function), matching.whole(case), self._table)

        def pull(cotangent: tf.Tensor, **inputs: Any) -> Tree:
            leaves = {name: value for name, value in inputs.items() if tf.is_tensor(value) and value.dtype.is_floating}
            with tf.GradientTape() as tape:
                tape.watch(list(leaves.values()))
                output = next(tensor for tensor in matching.leaves(function(**inputs)) if tf.is_tensor(tensor))
            return _gradients(tape, output, leaves, variables, cotangent)

        found = _named(self._graph(pull, case)(**inputs), matching.whole(case), self._table)
        return found["inputs"] | {f"parameters.{name}": array for name, array in found["parameters"].items()}

    def _graph(self, function: Callable[..., Any], case: Case) -> Callable[..., Any]:
        """The function as the case's mode runs it."""
        if matching.compiles_itself(function):
            return functools.partial(function, compiled=case.mode == "compiled")
        if case.mode != "compiled" or case.component in NO_GRAPH:
            return function
        if own := getattr(self.port, "compiled", None):
            return own(function)
        return tf.function(lambda **inputs: function(**inputs), autograph=False)

    def _built(self, case: Case, device: str) -> tuple[Any, dict[str, Any]]:
        """The component with its parameters, and the arguments of its call."""
        function = self.port.components[case.component](case.config, tf.as_dtype(case.dtype))
        inputs = parameters.nest(
            {name: weights.from_numpy(value, device) if isinstance(value, np.ndarray) else value for name, value in case.inputs.items()}
        )
        matching.refuse_keep(function.call if isinstance(function, keras.layers.Layer) else function, inputs)
        module = matching.owner(function)
        if isinstance(module, keras.layers.Layer) and (module is function or "training" in inspect.signature(function).parameters):
            inputs["training"] = False
        if case.parameters:
            if not getattr(module, "built", True):
                # a layer may learn the shapes of its weights from its inputs
                function(**{name: value for name, value in inputs.items() if name != "cotangent"})
            weights.load(module, case.parameters, case.config, matching.whole(case).component, self._table)
        return function, inputs

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


def _gradients(
    tape: tf.GradientTape, output: tf.Tensor, leaves: Mapping[Any, tf.Tensor], variables: Mapping[str, Any], cotangent: tf.Tensor
) -> Tree:
    """The gradients of the sum of cotangent * output, or zeros: `inputs` by the leaves' keys, `parameters` by native name."""
    sought = {"inputs": dict(leaves), "parameters": {name: getattr(variable, "value", variable) for name, variable in variables.items()}}
    found = tape.gradient(output, sought, tf.cast(cotangent, output.dtype), tf.UnconnectedGradients.ZERO)
    return tf.nest.map_structure(tf.convert_to_tensor, found)


def _named(found: Tree, case: Case, table: layout.Table) -> dict[str, dict[Any, np.ndarray]]:
    """As arrays, with the parameters' canonical names and layouts."""
    arrays = {kind: {name: weights.to_numpy(gradient) for name, gradient in found[kind].items()} for kind in found}
    return {"inputs": arrays["inputs"], "parameters": canonical_gradients(arrays["parameters"], case, table)}


@contextmanager
def _unsupported() -> Iterator[None]:
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
        for pattern in NO_KERNEL:
            if found := re.search(pattern, str(error)):
                raise Unsupported(found[1]) from error
        raise


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
