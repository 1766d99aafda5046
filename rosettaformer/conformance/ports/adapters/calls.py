"""The arguments that a port's modules have of their own: its `call`, component -> {own argument: input, or function of all inputs}."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import preset
from reference_numpy.suggestions import known

from ...case import Case, numpy_dtype
from ...reference import components
from ..port import NotCovered

__all__ = ["ZEROS", "Called", "Calls", "Row"]

Row = Mapping[str, str | Callable[[Mapping[str, Any]], Any]]
ZEROS = "zeros_btd"  # what a module is given that adds the positions to it


class Calls:
    """What `call` says of each component. Raises ValueError where it names no component or no input."""

    def __init__(self, call: Any) -> None:
        if not isinstance(call, Mapping) or not all(isinstance(row, Mapping) for row in call.values()):
            raise ValueError(f"call must map components to mappings from own argument to input; got {call!r:.100}")
        known("component of call", call, [name for name in components.COMPONENTS if not components.forward_of(name)])
        self._rows: Mapping[str, Row] = call
        for component, row in call.items():
            allowed = [*_defaults(component), *[ZEROS] * (component == "positional_encoding")]
            for argument, what in row.items():
                if not isinstance(argument, str) or not (isinstance(what, str) or callable(what)):
                    must = f"call of {component} must map own arguments to inputs or functions of all inputs"
                    raise ValueError(f"{must}; got {argument!r}: {what!r:.100}")
            known(f"an input in call of {component}", [what for what in row.values() if isinstance(what, str)], allowed)

    def around(self, function: Any, component: str) -> Any:
        """The component as it is called with the case's inputs."""
        return Called(function, component, self._rows[component]) if component in self._rows else function

    def arguments(self, component: str) -> list[str]:
        """The own arguments that are inputs as they are, in the order of the reference's inputs."""
        order, row = [*_defaults(component), ZEROS], self._rows.get(component, {})
        return sorted((argument for argument, what in row.items() if what in order), key=lambda argument: order.index(str(row[argument])))

    def adds_positions(self) -> bool:
        """Whether the module of the positions adds them to what it is given."""
        return ZEROS in self._rows.get("positional_encoding", {}).values()

    def zeros(self, case: Case) -> dict[str, np.ndarray]:
        """What such a module is given for the case; nothing for other components.

        Raises NotCovered where the positions are not those that it knows.
        """
        if case.component != "positional_encoding" or not self.adds_positions():
            return {}
        position = np.asarray(case.inputs["position_bt"])
        if position.ndim != 2 or not np.array_equal(position, np.broadcast_to(np.arange(position.shape[1]), position.shape)):
            raise NotCovered("the module adds positions 0, 1, 2, ... to what it is given, and the case has others")
        return {ZEROS: np.zeros((*position.shape, case.config.model_width), numpy_dtype(case.dtype))}


@dataclasses.dataclass(frozen=True)
class Called:
    """A module or function of a port, called with the case's inputs: it is given its own arguments."""

    function: Any
    component: str
    row: Row

    def __call__(self, **inputs: Any) -> Any:
        return self.function(**self.arguments(inputs))

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The own arguments; what is no input (`training`) stays. Raises NotCovered where an input has a value that no argument takes."""
        defaults = _defaults(self.component)
        given = _Inputs({**defaults, **{name: value for name, value in inputs.items() if name in (*defaults, ZEROS)}})
        others = {name: value for name, value in inputs.items() if name not in given}
        own = {argument: given[what] if isinstance(what, str) else what(given) for argument, what in self.row.items()}
        taken = {*given.taken, *["position_bt"] * (ZEROS in given.taken)}
        left = [name for name, default in defaults.items() if name not in taken and _has_value(given[name], default)]
        if left:
            raise NotCovered(f"the port's {self.component} takes no {', '.join(left)}")
        return others | own


class _Inputs(Mapping[str, Any]):
    """All inputs by name, None or the default where a case has none; it knows which of them were looked at."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values, self.taken = values, set[str]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise KeyError(f"the inputs are {', '.join(self._values)}; got {name}")
        self.taken.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values


def _defaults(component: str) -> dict[str, Any]:
    """The inputs of a component, and what each is where a case has none."""
    settings = {"parameters", "config", *components.settings(component, preset("tiny"), "float64")}
    declared = components.signature_of(component).parameters.values()
    return {p.name: None if p.default is inspect.Parameter.empty else p.default for p in declared if p.name not in settings}


def _has_value(value: Any, default: Any) -> bool:
    """Whether an input says something."""
    if value is None or value is False or value is default or (isinstance(value, Mapping) and not value):
        return False
    return not (isinstance(value, (int, float, str)) and value == default)
