"""TensorFlow adapter, for Keras layers, tf.Modules and functions."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

from impl_tf import weights

from ....common.modules import keras as face
from ....common.modules.nests import leaves
from ....common.modules.recording import ModuleCall
from ...case import Case
from . import submodules
from .base import Base, Named
from .call_mapping import CallMapping
from .recorder import Force, Pull

Tree = dict[str, dict[Any, Any]]


class Adapter(Base):
    """Runs cases eagerly or as a `tf.function`."""

    own, face = weights, face
    kinds = (keras.layers.Layer, tf.Module)
    no_graph = ("adam", "initialise", "random_dropout")  # components that create variables
    no_kernel = (
        (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError),
        (
            r"Could not find device for node: \{\{node (\w+)\}\}",
            r"No OpKernel was registered to support Op '(\w+)'",
            r"No registered '(\w+)' OpKernel for",
            r"Detected unsupported operations when trying to compile graph .*?: (\w+)",
        ),
    )

    def _dtype(self, name: str) -> tf.DType:
        return tf.as_dtype(name)

    @contextlib.contextmanager
    def _context(self, case: Case) -> Iterator[None]:
        before = tf.config.experimental.tensor_float_32_execution_enabled()
        with tf.device(face.device(case.device)):
            tf.config.experimental.enable_tensor_float_32_execution(case.device == "cuda-tf32")
            try:
                yield
            finally:
                tf.config.experimental.enable_tensor_float_32_execution(before)

    def _prepare(self, function: Any, inputs: dict[str, Any], case: Case) -> None:
        submodules.refuse_rare(function.call if isinstance(function, keras.layers.Layer) else function, inputs)
        module, own = submodules.owner(function), function.function if isinstance(function, CallMapping) else function
        if isinstance(module, keras.layers.Layer) and (module is own or "training" in inspect.signature(own).parameters):
            inputs["training"] = False
        if case.parameters and not getattr(module, "built", True):
            # an unbuilt layer gets its weights' shapes from its inputs
            with _built_as_called():
                function(**{name: value for name, value in inputs.items() if name != "cotangent"})
        self._load(module, case)

    def _stack(self, tensors: list[Any]) -> Any:
        return tf.stack(tensors)

    def _graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if own := getattr(self.port, "compiled", None):
            return own(function)
        return tf.function(lambda **inputs: function(**inputs), autograph=False)

    def _to_numpy(self, outputs: Any) -> Any:
        return tf.nest.map_structure(weights.to_numpy, outputs)

    def _gradients(self, case: Case) -> Named:
        function, inputs = self._built(case)
        variables = self._variables(function, case)

        def pull(cotangent: tf.Tensor, **inputs: Any) -> Tree:
            floating = {name: value for name, value in inputs.items() if tf.is_tensor(value) and value.dtype.is_floating}
            with tf.GradientTape() as tape:
                tape.watch(list(floating.values()))
                output = next(filter(tf.is_tensor, leaves(function(**inputs))))
            return face.gradients(tape, [output], [cotangent], _sought(floating, variables))

        return self._named(**self._in_mode(pull, case)(**inputs), case=case)

    @contextlib.contextmanager
    def _pull(self, function: Any, case: Case, force: Force | None) -> Iterator[Pull]:
        def leaf(tensor: tf.Tensor) -> tf.Tensor:
            tape.watch(tensor)
            return tensor

        def gradients(call: ModuleCall, forced: dict[int, Any], output: tf.Tensor, cotangent: np.ndarray) -> Named:
            floating = {index: tensor for index, tensor in forced.items() if tensor.dtype.is_floating}
            sought = _sought(floating, self._variables(function, case))
            return self._named(**face.gradients(tape, [output], [weights.from_numpy(cotangent)], sought), case=case)

        with tf.GradientTape() as tape:
            yield Pull(leaf, gradients)

    @staticmethod
    def describe() -> dict[str, Any]:
        """Returns versions, devices and the precision of float32 matmuls."""
        gpus = tf.config.list_physical_devices("GPU")
        names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        return {
            "version": {"tensorflow": tf.__version__, "keras": keras.__version__},
            "devices": ["cpu", *(f"cuda: {name}" for name in names)],
            "precision": "TF32 where the GPU has it" if tf32 else "float32",
        }


@contextlib.contextmanager
def _built_as_called() -> Iterator[None]:
    """Lets layers without a `build` of their own build their sublayers when these are called.

    Keras would otherwise trace each of them symbolically before its call, and its sublayers again
    within it, which costs many times as much as the call.
    """
    call = keras.layers.Layer.__call__

    @functools.wraps(call)
    def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if type(layer).build is keras.layers.Layer.build:
            layer.built = True
        return call(layer, *args, **kwargs)

    with mock.patch.object(keras.layers.Layer, "__call__", __call__):
        yield


def _sought(inputs: Mapping[Any, tf.Tensor], variables: Mapping[str, Any]) -> Tree:
    """Returns the sources of the gradients, as `_named` takes them; variables by native name."""
    return {"inputs": dict(inputs), "native": {name: getattr(variable, "value", variable) for name, variable in variables.items()}}
