"""A side in Keras with TensorFlow."""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

from impl_tf import weights
from reference_numpy import TransformerConfig, layout

from ...common.modules import arguments
from ...common.modules import keras as face
from .. import kinds
from .base import BETAS, DECAY, EPSILON, LEARNING_RATE, Arrays, Layer, LayerCall, Model, Variable, rounded
from .layer_calls import Record, described, layers, own_variables, tensors


class KerasModel(Model):
    """A Keras model or layer, built once in each dtype."""

    framework = "keras"

    def __init__(self, make: Callable[[], Any], first: Any, call: str = "") -> None:
        self._make, self._call = make, call
        self._models: dict[str, Any] = {"float32": first}
        self._records: dict[str, Record] = {}
        spatial = [layer for _, layer, kind in layers("keras", face.paths(first)) if kind in kinds.SPATIAL or "pool" in kind]
        formats = {getattr(layer, "data_format", "channels_last") for layer in spatial}
        self.convention = "" if len(formats) != 1 else "first" if formats == {"channels_first"} else "last"

    def about(self) -> dict[str, Any]:
        versions = {"keras": keras.__version__, "tensorflow": tf.__version__}
        return {"class": type(self._models["float32"]).__name__, "versions": versions, "arguments": self._arguments()}

    def _arguments(self) -> list[tuple[str, bool]]:
        model = self._models["float32"]
        if isinstance(model, face.Functional):
            names = model.input if isinstance(model.input, Mapping) else [tensor.name for tensor in model.inputs]
            return [(name, True) for name in names]
        return [("inputs", True)] if isinstance(model, keras.Sequential) else [*arguments.names(self._function(model)).items()]

    def _function(self, model: Any) -> Callable[..., Any]:
        return getattr(model, self._call) if self._call else model.call

    def build(self, inputs: Arrays) -> None:
        with _default("float32"):
            self._applied("float32", inputs)

    def widen(self, inputs: Arrays) -> None:
        with _default("float64"):
            self._models["float64"] = self._make()
            try:
                self._applied("float64", inputs)
            except Exception:
                del self._models["float64"]
                raise
        wide = self._tensors("float64")
        for name, variable in self._tensors("float32").items():
            wide[name].assign(tf.cast(variable, wide[name].dtype))

    def _layers(self, dtype: str) -> Iterator[tuple[str, Any, str]]:
        yield from layers("keras", face.paths(self._models[dtype]), self.whole_attention)

    def layers(self) -> list[Layer]:
        return described("keras", self._layers("float32"))

    def variables(self) -> list[Variable]:
        found = []
        for path, layer, kind, owned in self._owned("float32"):
            held = {name: (variable, bool(variable.trainable)) for name, variable in owned.items()}
            found += own_variables("keras", path, kind, layer, held)
        return found

    def _owned(self, dtype: str) -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
        """Yields the layers, each with its own floating-point variables by name."""
        taken: set[int] = set()
        for path, layer, kind in sorted(self._layers(dtype), key=lambda row: -len(row[0])):
            own = [variable for variable in layer.variables if id(variable) not in taken and "float" in str(variable.dtype)]
            taken |= {id(variable) for variable in own}
            yield path, layer, kind, dict(zip(_names(own, kind == "attention"), own, strict=True))

    def _tensors(self, dtype: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path, _, _, owned in self._owned(dtype):
            found |= {f"{path}.{name}".lstrip("."): variable for name, variable in owned.items()}
        return found

    def values(self) -> Arrays:
        return {name: np.array(variable) for name, variable in self._tensors("float32").items()}

    def load(self, values: Arrays) -> None:
        for dtype in self._models:
            own = self._tensors(dtype)
            for name, array in values.items():
                own[name].assign(array.astype(str(own[name].dtype)))

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        weights.load(self._models["float32"], values, config, component, table)

    def _inputs(self, inputs: Arrays, dtype: str) -> dict[str, tf.Tensor]:
        return {name: tf.constant(np.asarray(rounded(array, dtype), order="C")) for name, array in inputs.items()}

    def _applied(self, dtype: str, inputs: Arrays, training: bool = False) -> Any:
        return self._applied_to(dtype, self._inputs(inputs, dtype), training)

    def _applied_to(self, dtype: str, given: Mapping[str, Any], training: bool) -> Any:
        model, given = self._models[dtype], self.own(given)
        if isinstance(model, (face.Functional, keras.Sequential)):
            named = isinstance(model, face.Functional) and isinstance(model.input, Mapping)
            known = dict(self._arguments())
            found = arguments.placed(known, given, ordered=not named)
            values = [found[name] for name in known]
            return model(found if named else values[0] if len(values) == 1 else values, training=training)
        function = self._function(model)
        return (function if self._call else model)(**arguments.bound(function, given, training))

    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        record = self._records[dtype] = Record(face)
        rows = [(path, layer) for path, layer, _ in self._layers(dtype)]
        with _default(dtype), face.eager(), face.calls(rows, record.enter, record.leave):
            given = self._inputs(inputs, dtype)
            output = self._applied_to(dtype, given, False)
        record.whole(given, output)
        return record.calls

    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        with _default(dtype), face.eager():
            return [self._records[dtype].forced(*item) for item in wanted]

    def activate(self, path: str, arrays: list[np.ndarray], dtype: str) -> list[np.ndarray] | None:
        layer = next((layer for own, layer, _ in self._layers(dtype) if own == path), None)
        function = getattr(layer, "activation", None)
        return [np.array(function(tf.constant(array))) for array in arrays] if callable(function) else None

    def _floating(self, dtype: str, given: Mapping[str, Any], training: bool) -> list[tf.Tensor]:
        """Returns the floating-point outputs."""
        return [tensor for tensor in tensors(face, self._applied_to(dtype, given, training)) if tensor.dtype.is_floating]

    def _loss(self, dtype: str, given: Mapping[str, Any], cotangents: Sequence[tf.Tensor], training: bool) -> Any:
        outputs = self._floating(dtype, given, training)
        return tf.add_n([tf.reduce_sum(one * output) for one, output in zip(cotangents, outputs, strict=True)])

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        given, own = self._inputs(inputs, dtype), [tf.constant(np.array(array), dtype) for array in cotangents]
        floating = {f"input {name}": tensor for name, tensor in given.items() if tensor.dtype.is_floating}
        sought = floating | {name: variable.value for name, variable in self._tensors(dtype).items() if variable.trainable}
        with _default(dtype), tf.GradientTape() as tape:
            tape.watch(list(floating.values()))
            outputs = self._floating(dtype, given, False)
        return {name: gradient.numpy() for name, gradient in face.gradients(tape, outputs, own, sought).items()}

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        given, own = self._inputs(inputs, dtype), [tf.constant(np.array(array), dtype) for array in cotangents]
        with self._training(dtype), _default(dtype):
            step = self._stepping(dtype, given, own, optimizer)
            first, second = self._loss(dtype, given, own, True).numpy(), self._loss(dtype, given, own, True).numpy()
            self._restore()
            step()
            after = {name: np.array(variable) for name, variable in self._tensors(dtype).items()}
        return after, "" if first == second else "it is random in training mode"

    def _stepping(self, dtype: str, given: Any, own: Any, optimizer: str) -> Callable[[], Any]:
        # Keras adds epsilon before bias correction; this value makes its first step equal to the other frameworks'.
        epsilon = EPSILON * (1 - BETAS[1]) ** 0.5
        adamw = {"beta_1": BETAS[0], "beta_2": BETAS[1], "epsilon": epsilon, "weight_decay": DECAY}
        stepping = keras.optimizers.SGD(LEARNING_RATE) if optimizer == "sgd" else keras.optimizers.AdamW(LEARNING_RATE, **adamw)
        variables = self._models[dtype].trainable_variables
        stepping.build(variables)

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = self._loss(dtype, given, own, True)
            found = tape.gradient(loss, [variable.value for variable in variables], unconnected_gradients=tf.UnconnectedGradients.ZERO)
            stepping.apply([tf.convert_to_tensor(gradient) for gradient in found], variables)

        return step

    @contextlib.contextmanager
    def _training(self, dtype: str) -> Iterator[None]:
        """Disables dropout, and restores every variable afterward."""
        rates = [(layer, layer.rate) for _, layer, kind in self._layers(dtype) if kind == "dropout"]
        before = [(variable, np.array(variable)) for variable in self._models[dtype].variables]
        self._restore = lambda: [variable.assign(value) for variable, value in before]
        for layer, _ in rates:
            layer.rate = 0.0
        try:
            yield
        finally:
            for layer, rate in rates:
                layer.rate = rate
            self._restore()

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Callable[[], Any]:
        given, own = self._inputs(inputs, "float32"), [tf.constant(np.array(array), "float32") for array in cotangents]
        wrapped = functools.partial(tf.function, autograph=False) if compiled else (lambda function: function)
        if what == "step":
            return wrapped(self._stepping("float32", given, own, "sgd"))
        return wrapped(lambda: tensors(face, self._applied_to("float32", given, False)))


def _names(own: Sequence[Any], inner: bool) -> list[str]:
    """Returns the names of a layer's variables. inner: whether they belong to layers inside it.

    Variables without a name are numbered within the layer; Keras numbers them across the process.
    """
    inner |= len({variable.name for variable in own}) < len(own)
    unnamed = [variable for variable in own if re.fullmatch(r"variable(_\d+)?", variable.name)]
    if len(unnamed) > 1 or (unnamed and not inner):
        numbers = {id(variable): f"variable_{number}" for number, variable in enumerate(unnamed)}
        return [numbers.get(id(variable), variable.name) for variable in own]
    return [".".join(variable.path.split("/")[-2:]) if inner else variable.name for variable in own]


@contextlib.contextmanager
def _default(dtype: str) -> Iterator[None]:
    """Creates layers in this dtype within the block."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])
