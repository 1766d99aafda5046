"""A side in Flax: the common parts of NNX and Linen, as functions of the variables."""

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from impl_jax.framework import device_context

from ...common.modules import arguments
from ...common.modules import jax as face
from .base import BETAS, DECAY, EPSILON, LEARNING_RATE, Arrays, Model, Variable, rounded
from .layer_calls import own_variables, tensors

CPU = "cpu"  # device of every comparison
Values = Mapping[str, jax.Array]


class FlaxModel(Model):
    """Stores the values of variables by name; subclasses apply a module to them."""

    framework = "flax"

    def __init__(self, module: Any, call: str) -> None:
        self._module, self._name = module, call
        self._values: Arrays = {}
        self._trainable: set[str] = set()

    @abc.abstractmethod
    def _apply(self, values: Values, given: Mapping[str, Any], dtype: str, training: bool, twice: bool = False) -> tuple[Any, Any, Any]:
        """Returns the output, the values after the call, and a second output if `twice`."""

    def about(self) -> dict[str, Any]:
        versions = {"jax": jax.__version__, "flax": flax.__version__}
        found = [*arguments.names(self._function()).items()]
        return {"class": type(self._module).__name__, "versions": versions, "arguments": found}

    def _function(self) -> Callable[..., Any]:
        """Returns the function that calls the model."""
        found: Callable[..., Any] = getattr(self._module, self._name)
        return found

    @abc.abstractmethod
    def _rows(self) -> Iterable[tuple[str, Any, str]]:
        """Returns path, module and kind of every layer."""

    def variables(self) -> list[Variable]:
        found: list[Variable] = []
        left = dict(self._values)
        for path, module, kind in sorted(self._rows(), key=lambda row: -len(row[0])):
            prefix = f"{path}." if path else ""
            own = [name for name in left if name.startswith(prefix)]
            held = {name.removeprefix(prefix): (left.pop(name), name in self._trainable) for name in own}
            found = own_variables("flax", path, kind, module, held) + found
        return found

    def values(self) -> Arrays:
        return {name: np.array(array) for name, array in self._values.items()}

    def load(self, values: Arrays) -> None:
        self._values |= {name: np.asarray(array, np.float32) for name, array in values.items()}

    def _tensors(self, arrays: Mapping[str, np.ndarray], dtype: str) -> dict[str, jax.Array]:
        return {name: jnp.asarray(rounded(array, dtype)) for name, array in arrays.items()}

    def _call(self, function: Callable[..., Any], given: Mapping[str, Any], training: bool) -> Any:
        return function(**arguments.bound(self._function(), self.own(given), training))

    def _floating(self, output: Any) -> list[jax.Array]:
        return [tensor for tensor in tensors(face, output) if face.is_floating(tensor)]

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        with device_context(CPU, dtype):
            given, values = self._tensors(inputs, dtype), self._tensors(self._values, dtype)
            floating = {name: value for name, value in given.items() if face.is_floating(value)}
            parameters = {name: values[name] for name in self._trainable}

            def outputs(parameters: Any, floating: Any) -> list[jax.Array]:
                return self._floating(self._apply({**values, **parameters}, {**given, **floating}, dtype, False)[0])

            own = [jnp.asarray(array, dtype) for array in cotangents]
            of_parameters, of_inputs = face.gradients(outputs, (parameters, floating), own, compiled=True)
            found = {f"input {name}": np.array(array) for name, array in of_inputs.items()}
            return found | {name: np.array(array) for name, array in of_parameters.items()}

    def _stepping(
        self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str
    ) -> tuple[Callable[..., Any], Any, Callable[..., Any]]:
        """Returns a step (values, state), the values, and a function from values to a state."""
        given, values = self._tensors(inputs, dtype), self._tensors(self._values, dtype)
        own = [jnp.asarray(array, dtype) for array in cotangents]
        adamw = optax.adamw(LEARNING_RATE, b1=BETAS[0], b2=BETAS[1], eps=EPSILON, weight_decay=DECAY)
        transformation = optax.sgd(LEARNING_RATE) if optimizer == "sgd" else adamw

        def loss(parameters: Any, others: Any) -> Any:
            output, after, _ = self._apply({**others, **parameters}, given, dtype, True)
            pairs = zip(own, self._floating(output), strict=True)
            return sum(((one * tensor).sum() for one, tensor in pairs), jnp.zeros(())), after

        def step(values: Any, state: Any) -> Any:
            parameters = {name: values[name] for name in self._trainable}
            gradients, after = jax.grad(loss, has_aux=True)(parameters, values)
            updates, state = transformation.update(gradients, state, parameters)
            return {**after, **optax.apply_updates(parameters, updates)}, state

        return step, values, lambda values: transformation.init({name: values[name] for name in self._trainable})

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        with device_context(CPU, dtype):
            given, values = self._tensors(inputs, dtype), self._tensors(self._values, dtype)
            first, _, second = self._apply(values, given, dtype, True, twice=True)
            pairs = zip(tensors(face, first), tensors(face, second), strict=True)
            random = "" if all(np.array_equal(a, b) for a, b in pairs) else "it is random in training mode"
            del first, second, values
            step, start, state = self._stepping(inputs, cotangents, dtype, optimizer)
            after = jax.jit(lambda values: step(values, state(values))[0], donate_argnums=0)(start)  # donate the values to save memory
            return {name: np.array(array) for name, array in after.items()}, random

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Callable[[], Any]:
        wrapped = jax.jit if compiled else (lambda function: function)
        if what == "step":
            step, start, state = self._stepping(inputs, cotangents, "float32", "sgd")
            stepping, first = wrapped(step), state(start)
            return lambda: jax.block_until_ready(stepping(start, first))
        given, values = self._tensors(inputs, "float32"), self._tensors(self._values, "float32")
        forward = wrapped(lambda values, given: tensors(face, self._apply(values, given, "float32", False)[0]))
        return lambda: jax.block_until_ready(forward(values, given))
