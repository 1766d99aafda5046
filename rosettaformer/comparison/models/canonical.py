"""Models whose variables have canonical names: checkpoints, and components of ports."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, layout, parameters

from ...judge.case import Case
from ...judge.expectation import trace
from ...judge.expectation.components import model_of
from ...judge.ports.names import Names
from .base import Arrays, Layer, LayerCall, Model, Variable
from .reference_model import canonical_variables

DIGITS = 1 << 12  # base of element numbers; float32 represents every digit exactly


def named(table: layout.Table, config: TransformerConfig, component: str) -> Callable[[list[Variable]], list[Variable]]:
    """Returns a function that gives variables their canonical names and axes."""
    shapes, axes = parameters.shapes(config, component), parameters.axes(config, component)
    rows = {native: (name, own) for name, native, own in table}

    def rename(variables: list[Variable]) -> list[Variable]:
        found = []
        for one in variables:
            name, own = rows.get(one.name, ("", ""))
            path, _, role = name.rpartition(".")
            sizes = dict(zip(axes[name].split(), shapes[name], strict=True)) if name else {}
            more: dict[str, Any] = {"layer": path, "role": role, "axes": own, "sizes": sizes, "canonical": name, "required": bool(name)}
            found.append(dataclasses.replace(one, **more))
        return found

    return rename


class Component(Model):
    """A component of a port, with canonical variables and layer paths."""

    def __init__(self, model: Model, names: Names, case: Case, config: TransformerConfig) -> None:
        component = model_of(case.component)
        self._model, self._table, self.defaults = model, names.table(component, config), case.inputs
        self._shapes, self._axes = parameters.shapes(config, component), parameters.axes(config, component)
        self.framework, self.notes = model.framework, model.notes
        self._config, self._component = config, component
        paths = filter(None, trace.record(case.at("float64")))
        self._paths = {names.path(component, path): path for path in paths}
        self._places: dict[str, tuple[str, np.ndarray]] = {}

    def about(self) -> dict[str, Any]:
        return self._model.about()

    def widen(self, inputs: Arrays) -> None:
        self._model.widen(inputs)

    def timed(self, inputs: Arrays, cotangents: list[np.ndarray], what: str, compiled: bool) -> Any:
        return self._model.timed(inputs, cotangents, what, compiled)

    def build(self, inputs: Arrays) -> None:
        """Also locates canonical elements in the model, by loading numbers that identify them."""
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
            raise ValueError(f"the model has no variable for {', '.join(missing)}")

    def _marked(self, values: Callable[[str], np.ndarray]) -> Arrays:
        """Returns the model's variables, flattened, after loading these canonical values."""
        given = {name: values(name).astype(np.float32).reshape(shape) for name, shape in self._shapes.items()}
        self._model.adopt(given, self._config, self._component, self._table)
        return {name: array.ravel() for name, array in self._model.values().items()}

    def _of(self, native: Arrays) -> Arrays:
        """Converts native arrays to canonical ones, as far as they are present."""
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

    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
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
