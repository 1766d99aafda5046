"""One interface to the three ports, and one to all four implementations, for tests that check the same of each."""

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference_numpy import TransformerConfig, parameters
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components

PORTS = ("torch", "tf", "jax")
FOUR = ("numpy", *PORTS)
_NEEDS = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}


def of_four(names: Iterable[str]) -> list[Any]:
    """Returns (implementation, name) pairs: each name with the reference and one port; the other ports are of kind conformance."""
    pairs = [(who, name, (place + number) % 3) for place, name in enumerate(names) for number, who in enumerate(PORTS)]
    ports = [pytest.param(who, name, marks=pytest.mark.conformance if turn else ()) for who, name, turn in pairs]
    return [("numpy", name) for name in names] + ports


class Backend:
    """A port: builds its modules, loads and exports parameters, and calls them on NumPy arrays."""

    def __init__(self, name: str) -> None:
        self.framework: Any = pytest.importorskip(_NEEDS[name], reason=f"{_NEEDS[name]} is not installed")
        self.name = name
        self.port, self.weights = self.part("port"), self.part("weights")
        self.adapter = importlib.import_module(f"rosettaformer.judge.ports.adapters.{name}").Adapter(self.port)

    def part(self, name: str) -> ModuleType:
        """Returns a module of the port."""
        return importlib.import_module(f"impl_{self.name}.{name}")

    def dtype(self, name: str) -> Any:
        """Returns the framework's dtype of that name."""
        if self.name == "torch":
            return getattr(self.framework, name)
        if self.name == "tf":
            return self.framework.as_dtype(name)
        return np.dtype(getattr(ml_dtypes, name, name))

    def wide(self) -> Any:
        """Enables float64 and int64, which JAX has only on request."""
        return self.framework.enable_x64(True) if self.name == "jax" else contextlib.nullcontext()

    def build(self, component: str, config: TransformerConfig, dtype: str = "float32") -> Any:
        """Builds a module in evaluation mode; float64 in JAX needs `enable_x64` around the call."""
        module = self.port.components[component](config, self.dtype(dtype))
        if isinstance(module, functools.partial) and module.args:  # translates the inputs of a case
            module = module.args[0]
        if component == "transformer" and self.name == "jax":  # the port's own adapter accepts everything a case may pass
            module = self.port.blank(self.part("transformer").Transformer, config, self.dtype(dtype))
        if self.name == "torch" and hasattr(module, "to"):
            module = module.to(self.dtype(dtype)).eval()
        if self.name == "jax" and hasattr(module, "eval"):
            module.eval()
        return module

    def texts(self, **inputs: Any) -> dict[str, Any]:
        """Returns the arguments of a model; masks and segments are passed only for the sides it has."""
        rest = {"source": ("source_mask_bs", "segment_bs"), "target": ("target_mask_bt",)}
        of_sides = {side: [inputs.pop(name, None) for name in names] for side, names in rest.items()}
        sides = {side: inputs[side] for side in rest if inputs.get(side) is not None}
        return inputs | {side: self.part("values").Text(ids, *of_sides[side]) for side, ids in sides.items()}

    def loaded(self, config: TransformerConfig, arrays: dict[str, np.ndarray]) -> Any:
        """Returns a whole model with these parameters, in their dtype."""
        model = self.build("transformer", config, str(next(iter(arrays.values())).dtype))
        self.weights.load(model, arrays, config)
        return model

    def arrays(self, found: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: self.weights.to_numpy(value) for name, value in found.items()}

    def gradients(self, function: Callable[..., Any], *arrays: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Returns the function's output and the gradients of its sum of squares with respect to the arguments."""
        given = [self.weights.from_numpy(array) for array in arrays]
        if self.name == "torch":
            output = function(*(tensor.requires_grad_() for tensor in given))
            found = self.framework.autograd.grad(output.square().sum(), given)
        elif self.name == "tf":
            with self.framework.GradientTape() as tape:
                tape.watch(given)
                output = function(*given)
                loss = self.framework.reduce_sum(output * output)
            found = tape.gradient(loss, given)
        else:

            def squared(*given: Any) -> tuple[Any, Any]:
                output = function(*given)
                return (output**2).sum(), output

            found, output = self.framework.grad(squared, argnums=tuple(range(len(given))), has_aux=True)(*given)
        return self.weights.to_numpy(output), [self.weights.to_numpy(gradient) for gradient in found]

    def parameter_gradients(
        self, model: Any, config: TransformerConfig, function: Callable[[Any], Any]
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Returns the scalar function of the model and its gradients by canonical name; JAX compiles one program for both."""
        held = self.loaded(config, self.weights.export(model, config))
        if self.name == "torch":
            value = function(model)
            gradients = self.framework.autograd.grad(value, [*model.parameters()], allow_unused=True, materialize_grads=True)
            for parameter, gradient in zip(held.parameters(), gradients, strict=True):
                parameter.data = gradient
        elif self.name == "tf":
            with self.framework.GradientTape() as tape:
                value = function(model)
            gradients = tape.gradient(value, model.trainable_variables, unconnected_gradients="zero")
            for variable, gradient in zip(held.trainable_variables, gradients, strict=True):
                variable.assign(self.framework.convert_to_tensor(gradient))
        else:
            from flax import nnx

            graph, state, *rest = nnx.split(model, nnx.Param, ...)
            program = self.framework.jit(self.framework.value_and_grad(lambda state: function(nnx.merge(graph, state, *rest))))
            value, gradients = program(state)
            nnx.update(held, gradients)
        return float(self.weights.to_numpy(value)), self.weights.export(held, config)


def random_parameters(config: TransformerConfig, dtype: str = "float64", seed: int = 3) -> dict[str, np.ndarray]:
    """Draws parameters larger than at initialization, so that the output depends visibly on what is attended to."""
    rng, kind = np.random.default_rng(seed), np.dtype(getattr(ml_dtypes, dtype, dtype))
    return {name: (0.6 * rng.standard_normal(shape)).astype(kind) for name, shape in parameters.shapes(config).items()}


def answerer(name: str) -> Callable[[Case], dict[str, Any]]:
    """Returns a function that computes a case: with the reference for `numpy`, else with a port that builds its modules once per config."""
    if name == "numpy":
        return components.answer
    backend = Backend(name)
    built = {component: functools.cache(build) for component, build in backend.port.components.items()}
    adapter = type(backend.adapter)(SimpleNamespace(**vars(backend.port) | {"components": built}))
    return lambda case: components.named_outputs(adapter.run(case))
