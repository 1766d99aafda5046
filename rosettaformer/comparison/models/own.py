"""Models of ours: a checkpoint in a backend, and a component of a port's file."""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, layout, parameters

from ... import checkpoints
from ...backends import BACKENDS, imported
from ...conformance.cases import all_cases
from ...conformance.ports.names import Names
from ...conformance.ports.port import Port
from ...conformance.reference.components import model_of
from .base import Arrays, Called, Layer, Model, Variable
from .reference_model import ReferenceModel, inputs_of

__all__ = ["of_checkpoint", "of_component"]

RATES = ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate", "classifier_dropout_rate")
MODULES = {"torch": "impl_torch", "tf": "impl_tf", "jax": "impl_jax"}


def component_of(config: TransformerConfig) -> str:
    """What a model of that config gives: the most that follows from its heads."""
    if config.decoder_layers:
        return "transformer"
    if config.classes:
        return "classify"
    return "masked_language_logits" if config.masked_language_head else "pool" if config.pooler else "encode"


def of_checkpoint(path: Path, backend: str) -> Model:
    """The model of a canonical file, a folder of Hugging Face or of a run, with its weights in float32."""
    checkpoint = checkpoints.load(path)
    # Nothing is dropped in evaluation, and what drops at random cannot be compared.
    config = checkpoint.config.replace(**dict.fromkeys(RATES, 0.0))
    values = {name: array.astype(np.float32) for name, array in checkpoint.parameters.items()}
    call = component_of(config)
    if backend == "numpy":
        return ReferenceModel(config, values, call)
    package = MODULES[backend]
    imported(backend, BACKENDS[backend])
    weights = imported(backend, f"{package}.weights")
    transformer = imported(backend, f"{package}.transformer").Transformer
    method = {"transformer": "", "encode": "encode"}.get(call, call)

    def make() -> Any:
        if backend == "torch":
            module = transformer(config)
        elif backend == "jax":
            module = transformer(config, rngs=imported(backend, "flax.nnx").Rngs(0))
        else:
            import keras

            module = transformer(config, dtype=keras.config.floatx())
        kind = "float64" if backend == "tf" and str(module.dtype) == "float64" else "float32"
        weights.load(module, {name: array.astype(kind) for name, array in values.items()}, config)
        return module

    from ..opening import wrapped

    model = wrapped(make(), make, str(path), method)
    return _Canonical(model, layout_table(config, weights.TABLE), config, "transformer", inputs_of(config))


def layout_table(config: TransformerConfig, table: Any, component: str = "transformer", paths: Any = ()) -> layout.Table:
    return Names(table, paths).table(component, config)


def of_component(file: str, component: str, settings: Mapping[str, Any]) -> Model:
    """A component of a port's file, with the config of its first case, and the settings in place of its fields."""
    port = Port(file)
    if port.adapter is None:
        raise ValueError(f"{file} gives functions, and only a port that names its framework shows layers and weights")
    if component not in port.components:
        raise ValueError(f"{file} does not define {component}; it has {', '.join(port.components)}")
    case = next(case for case in all_cases() if case.component == component and case.core)
    config = case.config.replace(**{**port.config, **settings})
    build = port.module.components[component]

    def make() -> Any:
        return build(config, _dtype(port.module.framework))

    from ..opening import wrapped

    table = layout_table(config, getattr(port.module, "weights", port.adapter.own.TABLE), model_of(component))
    return _Canonical(wrapped(make(), make, file), table, config, model_of(component), [])


def _dtype(framework: str) -> Any:
    """What a port's component is built in: float32, but for Keras, which builds once in each dtype."""
    if framework == "torch":
        return importlib.import_module("torch").float32
    if framework == "jax":
        return np.dtype("float32")
    return importlib.import_module("tensorflow").as_dtype(importlib.import_module("keras").config.floatx())


class _Canonical(Model):
    """A model whose variables have canonical names; everything else is the wrapped model's."""

    def __init__(self, model: Model, table: layout.Table, config: TransformerConfig, component: str, defaults: Sequence[str]) -> None:
        self._model, self._table, self.defaults = model, table, list(defaults)
        self._shapes, self._axes = parameters.shapes(config, component), parameters.axes(config, component)
        self.framework, self.convention, self.notes = model.framework, "", model.notes

    def variables(self) -> list[Variable]:
        rows = {native: (name, axes) for name, native, axes in self._table}
        found = []
        for one in self._model.variables():
            name, axes = rows.get(one.name, ("", ""))
            sizes = dict(zip(self._axes[name].split(), self._shapes[name], strict=True)) if name else {}
            path = name.rpartition(".")[0]
            role = name.rpartition(".")[2]
            found.append(dataclasses.replace(one, layer=path, role=role, axes=axes, sizes=sizes, canonical=name, required=bool(name)))
        return found

    def about(self) -> dict[str, Any]:
        return self._model.about()

    def build(self, inputs: Arrays) -> None:
        self._model.build(inputs)

    def layers(self) -> list[Layer]:
        return self._model.layers()

    def values(self) -> Arrays:
        return self._model.values()

    def load(self, values: Arrays) -> None:
        self._model.load(values)

    def run(self, inputs: Arrays, dtype: str) -> list[Called]:
        return self._model.run(inputs, dtype)

    def force(self, wanted: Any, inputs: Arrays, dtype: str) -> list[Any]:
        return self._model.force(wanted, inputs, dtype)

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        return self._model.gradients(inputs, cotangents, dtype)

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        return self._model.step(inputs, cotangents, dtype, optimizer)

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Any:
        return self._model.timed(inputs, cotangents, what, compiled)
