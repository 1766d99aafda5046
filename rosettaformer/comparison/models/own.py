"""Models of ours: a checkpoint in a backend, and a component of a port's file."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, layout, parameters

from ... import checkpoints
from ...backends import BACKENDS, imported
from ...conformance.case import Case
from ...conformance.cases import all_cases
from ...conformance.ports.names import Names
from ...conformance.ports.port import Port
from ...conformance.reference.components import model_of
from .base import Arrays, Called, Layer, Model, Variable, is_floating, rounded

__all__ = ["of_checkpoint", "of_component"]

TOKENS = 16  # of random inputs, where the model has room for them
RATES = ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate", "classifier_dropout_rate")
MODULES = {"torch": "impl_torch", "tf": "impl_tf", "jax": "impl_jax"}


def component_of(config: TransformerConfig) -> str:
    """What a model of that config gives: the most that follows from its heads."""
    if config.decoder_layers:
        return "transformer"
    if config.classes:
        return "classify"
    return "masked_language_logits" if config.masked_language_head else "pool" if config.pooler else "encode"


def inputs_of(config: TransformerConfig) -> list[str]:
    """Declarations of random tokens."""
    length = min(TOKENS, config.max_positions) if config.positions == "learned" else TOKENS
    source = f"source: b=2 s={length} int64 <{config.source_vocabulary}"
    target = f"target: b=2 t={length} int64 <{config.target_vocabulary}"
    return [*[source] * bool(config.encoder_layers), *[target] * bool(config.decoder_layers)]


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
    dtype = port.adapter._dtype("float32")

    def make() -> Any:
        return build(config, dtype)

    from ..opening import wrapped

    table = layout_table(config, getattr(port.module, "weights", port.adapter.own.TABLE), model_of(component))
    return _Canonical(wrapped(make(), make, file), table, config, model_of(component), [])


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


class ReferenceModel(Model):
    """A checkpoint in the reference, whose layers are the components that its run calls."""

    framework = "numpy"

    def __init__(self, config: TransformerConfig, values: Arrays, component: str) -> None:
        if component == "encode":
            raise ValueError("the reference compares an encoder alone by its pooler or a head; this model has none")
        self._config, self._values, self._component = config, values, component
        self.defaults = inputs_of(config)
        self._traced: dict[str, Any] = {}

    def about(self) -> dict[str, Any]:
        names = [text.partition(":")[0] for text in self.defaults]
        return {
            "class": f"reference {self._component}",
            "versions": {"numpy": np.__version__},
            "arguments": [(name, True) for name in names],
        }

    def build(self, inputs: Arrays) -> None:
        pass

    def layers(self) -> list[Layer]:
        return [Layer(path, "", call.component, {}) for path, call in self._traced.items()]

    def variables(self) -> list[Variable]:
        axes = parameters.axes(self._config)
        found = []
        for name, array in self._values.items():
            sizes = dict(zip(axes[name].split(), array.shape, strict=True))
            path, _, role = name.rpartition(".")
            found.append(Variable(name, path, role, axes[name], array.shape, True, sizes, True, name))
        return found

    def values(self) -> Arrays:
        return dict(self._values)

    def load(self, values: Arrays) -> None:
        self._values |= values

    def _case(self, inputs: Arrays, dtype: str, component: str = "", **others: Any) -> Case:
        given = {name: rounded(array, dtype) for name, array in inputs.items()}
        if self._component == "transformer" and "source" not in given:
            given["source"] = None  # type: ignore[assignment]
        return Case("compared", component or self._component, self._config, given | others, self._values).at(dtype)

    def run(self, inputs: Arrays, dtype: str) -> list[Called]:
        from ...conformance.reference import trace

        case = self._case(inputs, dtype)
        traced = self._traced = trace.record(case)
        calls = []
        for path, call in traced.items():
            given = trace.arrays(call.inputs)
            calls.append(Called(path, 0, given, [call.output], [None] * len(given), [None]))
        return calls

    def force(self, wanted: Any, inputs: Arrays, dtype: str) -> list[Any]:
        from ...conformance.reference import components

        def forced(path: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            call = self._traced[path]
            names = [name for name, value in call.inputs.items() if is_floating(value)]
            if len(names) != len(arrays):
                raise ValueError("takes other arrays")
            case = dataclasses.replace(call.case(dtype), inputs={**call.inputs, **dict(zip(names, arrays, strict=True))}).at(dtype)
            return [next(iter(components.answer(case).values()))]

        from .base import guarded

        return [guarded(lambda item=item: forced(item[0], item[2])) for item in wanted]  # type: ignore[misc]

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        from ...conformance.reference import components

        found = components.answer(self._case(inputs, dtype, f"{self._component}_vjp", cotangent=rounded(cotangents[0], dtype)))
        prefix = "parameters."
        return {name.removeprefix(prefix) if name.startswith(prefix) else f"input {name}": array for name, array in found.items()}

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        raise ValueError("the reference has no optimiser of a framework")

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Any:
        if compiled or what == "step":
            raise ValueError("the reference runs eagerly, and has no step of a framework")
        from ...conformance.reference import components

        case = self._case(inputs, "float32")
        return lambda: components.answer(case)
