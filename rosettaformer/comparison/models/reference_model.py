"""A checkpoint in the reference."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters

from ...judge.case import Case
from ...judge.expectation import components, trace
from .base import Arrays, Layer, LayerCall, Model, Variable, guarded, is_floating, rounded

TOKENS = 16  # length of random inputs, unless the model has fewer positions


def inputs_of(config: TransformerConfig) -> list[str]:
    """Returns the declarations of random tokens."""
    length = min(TOKENS, config.max_positions) if config.positions == "learned" else TOKENS
    source = f"source: b=2 s={length} int64 <{config.source_vocabulary}"
    target = f"target: b=2 t={length} int64 <{config.target_vocabulary}"
    return [*[source] * bool(config.encoder_layers), *[target] * bool(config.decoder_layers)]


def canonical_variables(axes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> list[Variable]:
    """Returns the variables in the reference's layout."""
    found = []
    for name, shape in shapes.items():
        path, _, role = name.rpartition(".")
        found.append(Variable(name, path, role, axes[name], shape, True, dict(zip(axes[name].split(), shape, strict=True)), True, name))
    return found


class ReferenceModel(Model):
    """A checkpoint in the reference; its layers are the components that it calls."""

    framework = "numpy"

    def __init__(self, config: TransformerConfig, values: Arrays, component: str) -> None:
        if component == "encode":
            raise ValueError("the reference cannot run an encoder-only model without a pooler or head")
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

    def layers(self) -> list[Layer]:
        return [Layer(path, "", call.component, {}) for path, call in self._traced.items()]

    def variables(self) -> list[Variable]:
        return canonical_variables(parameters.axes(self._config), {name: array.shape for name, array in self._values.items()})

    def values(self) -> Arrays:
        return dict(self._values)

    def load(self, values: Arrays) -> None:
        self._values |= values

    def _case(self, inputs: Arrays, dtype: str, component: str = "", **others: Any) -> Case:
        given = {name: rounded(array, dtype) for name, array in inputs.items()}
        if self._component == "transformer" and "source" not in given:
            given["source"] = None  # type: ignore[assignment]
        return Case("compared", component or self._component, self._config, given | others, self._values).at(dtype)

    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        case = self._case(inputs, dtype)
        traced = self._traced = trace.record(case)
        calls = []
        for path, call in traced.items():
            given = trace.arrays(call.inputs)
            calls.append(LayerCall(path, 0, given, [call.output], [None] * len(given), [None]))
        return calls

    def force(self, wanted: Any, inputs: Arrays, dtype: str) -> list[Any]:
        def forced(path: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            call = self._traced[path]
            names = [name for name, value in call.inputs.items() if is_floating(value)]
            if len(names) != len(arrays):
                raise ValueError(f"it takes {len(names)} arrays; got {len(arrays)}")
            case = dataclasses.replace(call.case(dtype), inputs={**call.inputs, **dict(zip(names, arrays, strict=True))}).at(dtype)
            return [next(iter(components.answer(case).values()))]

        return [guarded(lambda item=item: forced(item[0], item[2])) for item in wanted]  # type: ignore[misc]

    def gradients(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str) -> Arrays:
        found = components.answer(self._case(inputs, dtype, f"{self._component}_vjp", cotangent=rounded(cotangents[0], dtype)))
        prefix = "parameters."
        return {name.removeprefix(prefix) if name.startswith(prefix) else f"input {name}": array for name, array in found.items()}

    def step(self, inputs: Arrays, cotangents: list[np.ndarray], dtype: str, optimizer: str) -> tuple[Arrays, str]:
        raise ValueError("the NumPy reference has no framework optimizer")

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Any:
        if compiled or what == "step":
            raise ValueError("the NumPy reference only has an eager forward pass")

        case = self._case(inputs, "float32")
        return lambda: components.answer(case)
