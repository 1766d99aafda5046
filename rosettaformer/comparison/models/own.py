"""Models of ours: a checkpoint in a backend, and a component of a port's file."""

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, layout, parameters

from ... import checkpoints
from ...backends import BACKENDS, imported
from ...conformance.case import Case
from ...conformance.cases import all_cases
from ...conformance.ports.adapters.calls import Called as Arguments
from ...conformance.ports.names import Names
from ...conformance.ports.port import NotCovered, Port
from ...conformance.reference import trace
from ...conformance.reference.components import forward_of, model_of, signature_of
from .base import Arrays, Called, Layer, Model, Translation, Variable
from .reference_model import ReferenceModel, canonical_variables, inputs_of

__all__ = ["of_checkpoint", "of_component"]

RATES = ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate", "classifier_dropout_rate")
MODULES = {"torch": "impl_torch", "tf": "impl_tf", "jax": "impl_jax"}
DIGITS = 1 << 12  # the base in which elements are counted, whose digits float32 holds


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


def of_component(port: Port, component: str, fixed: Mapping[str, Any], canonical: bool) -> Model:
    """A component of a port, with the config and the inputs of one of its cases that has these config fields.

    Inputs of the reference's names are given as the arguments that the port's `call` says. Nothing is dropped. canonical: variables and
    layers have canonical names.
    """
    file = port.name
    if port.adapter is None:
        raise ValueError(f"{file} gives functions, and only a port that names its framework shows layers and weights")
    if component not in port.components:
        has = ", ".join(name for name in port.components if not forward_of(name))
        raise ValueError(f"{file} does not define {component}; it has {has}")
    case = _chosen_case(component, fixed)
    config, build = case.config.replace(**dict.fromkeys(RATES, 0.0)), port.module.components[component]

    def make() -> Any:
        return build(config, _dtype(port.module.framework))

    from ..opening import wrapped

    model = wrapped(make(), make, f"{file}: {component}")
    model.translation = _translation(port.adapter.calls.around(None, component))
    model.defaults = case.inputs
    return _Component(model, port.adapter.names, case, config) if canonical else model


def _chosen_case(component: str, fixed: Mapping[str, Any]) -> Case:
    """The first case of arrays alone with these config fields; if there is one, with a mask, but where every query has a key.

    Raises ValueError where there is none.
    """
    cases = [case for case in all_cases(fixed) if case.component == component]
    found = [case for case in cases if not case.excluded and all(_is_input(*each) for each in case.inputs.items())]
    if not found:
        raise ValueError(f"{component} has no case of arrays alone" + next((f": {case.excluded}" for case in cases if case.excluded), ""))
    masks = [[value for name, value in case.inputs.items() if name.endswith("mask_bhts")] for case in found]
    masked = [case for case, own in zip(found, masks, strict=True) if own and all(mask.any(-1).all() and not mask.all() for mask in own)]
    return (masked or found)[0]


def _is_input(name: str, value: Any) -> bool:
    return isinstance(value, np.ndarray) and not name.startswith("keep")


def _translation(called: Any) -> Translation:
    """What makes the port's arguments of the reference's inputs; inputs of other names are its own arguments already."""

    def translation(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(called, Arguments) or not inputs.keys() <= signature_of(called.component).parameters.keys():
            return inputs
        try:
            return called.arguments(inputs)
        except NotCovered as error:
            raise ValueError(str(error)) from None

    return translation


def _dtype(framework: str) -> Any:
    """What a port's component is built in: float32, but for Keras, which builds once in each dtype."""
    if framework == "torch":
        return importlib.import_module("torch").float32
    if framework == "jax":
        return np.dtype("float32")
    return importlib.import_module("tensorflow").as_dtype(importlib.import_module("keras").config.floatx())


class _Canonical(Model):
    """A model whose variables have canonical names; everything else is the wrapped model's."""

    def __init__(self, model: Model, table: layout.Table, config: TransformerConfig, component: str, defaults: Any) -> None:
        self._model, self._table, self.defaults = model, table, defaults
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


class _Component(_Canonical):
    """A component of a port: its variables are the canonical ones, wherever the port holds them, and so are the paths of its layers."""

    def __init__(self, model: Model, names: Names, case: Case, config: TransformerConfig) -> None:
        component = model_of(case.component)
        super().__init__(model, names.table(component, config), config, component, case.inputs)
        self._config, self._component = config, component
        paths = filter(None, trace.record(case.at("float64")))
        self._paths = {names.path(component, path): path for path in paths}
        self._places: dict[str, tuple[str, np.ndarray]] = {}

    def build(self, inputs: Arrays) -> None:
        """Also finds the elements of the canonical variables in those of the model: it is loaded with numbers that say which they are."""
        self._model.build(inputs)
        before = self._model.values()
        sizes = {name: math.prod(shape) for name, shape in self._shapes.items()}
        which = self._marked(lambda name: np.full(sizes[name], 1 + [*sizes].index(name)))
        opposite = self._marked(lambda name: np.full(sizes[name], -1 - [*sizes].index(name)))
        low, high = (self._marked(lambda name, part=part: np.divmod(np.arange(sizes[name]), DIGITS)[part]) for part in (1, 0))  # type: ignore[misc]
        self._model.load(before)
        for number, (name, size) in enumerate(sizes.items(), 1):
            for native, found in which.items():
                positions = np.flatnonzero((found == number) & (opposite[native] == -number))
                if len(positions) == size:
                    place = np.empty(size, int)
                    place[(low[native] + high[native] * DIGITS)[positions].astype(int)] = positions
                    self._places[name] = (native, place)
        if missing := [name for name in sizes if name not in self._places]:
            raise ValueError(f"no variable of the model holds {', '.join(missing)}")

    def _marked(self, values: Callable[[str], np.ndarray]) -> Arrays:
        """The model's variables, flat, when the canonical ones have these values."""
        given = {name: values(name).astype(np.float32).reshape(shape) for name, shape in self._shapes.items()}
        self._model.adopt(given, self._config, self._component, self._table)
        return {name: array.ravel() for name, array in self._model.values().items()}

    def _of(self, native: Arrays) -> Arrays:
        """The canonical arrays in arrays of the model's variables, as far as these are there."""
        return {
            name: native[where].ravel()[place].reshape(self._shapes[name])
            for name, (where, place) in self._places.items()
            if where in native
        }

    def variables(self) -> list[Variable]:
        return canonical_variables(self._axes, self._shapes)

    def values(self) -> Arrays:
        return self._of(self._model.values())

    def load(self, values: Arrays) -> None:
        native = self._model.values()
        for name, array in values.items():
            where, place = self._places[name]
            np.put(native[where], place, array)
        self._model.load({where: native[where] for where, _ in self._places.values()})

    def layers(self) -> list[Layer]:
        return [dataclasses.replace(layer, path=self._paths.get(layer.path, layer.path)) for layer in self._model.layers()]

    def run(self, inputs: Arrays, dtype: str) -> list[Called]:
        return [dataclasses.replace(call, path=self._paths.get(call.path, call.path)) for call in self._model.run(inputs, dtype)]

    def force(self, wanted: Any, inputs: Arrays, dtype: str) -> list[Any]:
        own = {path: native for native, path in self._paths.items()}
        return self._model.force([(own.get(path, path), index, arrays) for path, index, arrays in wanted], inputs, dtype)

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        native = self._model.gradients(inputs, cotangents, dtype)
        return {name: array for name, array in native.items() if name.startswith("input ")} | self._of(native)

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        native, random = self._model.step(inputs, cotangents, dtype, optimizer)
        return self._of(native), random
