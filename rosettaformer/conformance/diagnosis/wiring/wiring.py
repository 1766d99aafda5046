"""Another wiring of a model: a component is given, or gives, another value."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...catalogue import Alteration
from ...catalogue.place import Site
from ...reference.paths import Paths, joined
from .observed_values import Values, arrays_of, first_of, general, observed, passed_on, relative, summing

OUTPUT, RESIDUAL, TREE = "output", "residual", "parameters"
AGAIN, NOTHING, NORMED = "applied twice", "nothing", "normed by "
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of what a component gives
    "zero": np.zeros_like,
    "doubled": lambda output: output + output,
    "halved": lambda output: output * 0.5,
    "negated": np.negative,
    "multiplied by the square root of its width": lambda output: output * output.shape[-1] ** 0.5,
    "divided by the square root of its width": lambda output: output / output.shape[-1] ** 0.5,
    "multiplied by its width": lambda output: output * output.shape[-1],
    "divided by its width": lambda output: output / output.shape[-1],
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Wiring(Alteration):
    """A component that is given, or gives, another value than the reference's.

    parent: the component within which it stands. child: its path within that one, with `*` for any layer. argument: what is replaced;
    `output` for what it gives, `residual` for what is added to that, `parameters` for its parameters. value: the label of what replaces
    it, or what is done to it.
    """

    parent: str
    child: str
    argument: str
    value: str

    @property
    def name(self) -> str:
        """What it does, and where."""
        return f"another wiring of the {self.parent} ({self.title})" + (f" in {self.place} alone" if self.place else "")

    @property
    def followed(self) -> bool:
        """Always: it is of one component."""
        return True

    @contextlib.contextmanager
    def altering(self, paths: Paths) -> Iterator[None]:
        """The reference with the other value in it."""
        values = Values(paths)
        with observed(lambda *call: self._called(values, *call)), summing(lambda *sum: self._residual(values, *sum)):
            yield

    def _meant(self, values: Values, kind: str, child: str, path: str) -> bool:
        if kind != self.parent or self.child not in (child, general(child)):
            return False
        return self.place is None or self.place.holds(Site(path, tuple(values.paths.layers.items())))

    def _residual(self, values: Values, name: str, x_btd: np.ndarray) -> np.ndarray:
        path, kind = next(iter(values.paths.around()), ("", ""))
        meant = self.argument == RESIDUAL and self._meant(values, kind, name, joined(path, name))
        return self._replacement(x_btd, values.within(path)) if meant else x_btd

    def _called(self, values: Values, function: Callable, given: dict[str, Any]) -> Any:
        path, parent, kind, others = values.begin(given)
        meant = self._meant(values, kind, relative(path, parent), path)
        if meant and self.argument not in (OUTPUT, RESIDUAL, TREE):
            others = others | self._normed(values, parent, given.get(self.argument))
            given = given | {self.argument: self._replacement(given.get(self.argument), others)}
        elif meant and self.argument == TREE:
            given = given | {TREE: values.siblings(parent).get(self.value, given[TREE])}
        result = function(**given)
        if meant and self.argument == OUTPUT:
            output = first_of(result)
            output = self._output(output, function, given, others | self._normed(values, parent, output))
            result = (output, *result[1:]) if isinstance(result, tuple) else output
        values.end(path, parent, kind, given, first_of(result))
        return result

    def _normed(self, values: Values, parent: str, own: Any) -> dict[str, Any]:
        """The argument or the output through a norm beside the component, by the label that stands for it."""
        norm = self.value.removeprefix(NORMED)
        return {self.value: values.normed(parent, norm, own)} if norm != self.value and isinstance(own, np.ndarray) else {}

    def _replacement(self, own: Any, others: Mapping[str, Any]) -> Any:
        if self.value == NOTHING:
            return None
        other = others.get(self.value)
        return other if isinstance(own, np.ndarray) and other is not None and other.shape == own.shape else own

    def _output(self, output: np.ndarray, function: Callable, given: dict[str, Any], others: Mapping[str, Any]) -> np.ndarray:
        if self.value in CHANGES:
            return CHANGES[self.value](output).astype(output.dtype, copy=False)
        if self.value == AGAIN:
            argument = passed_on(given, output)
            return first_of(function(**given | {argument: output})) if argument else output
        return self._replacement(output, dict(others) | {f"its {name}": value for name, value in arrays_of(given)})
