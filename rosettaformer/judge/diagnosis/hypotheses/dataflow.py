"""Dataflow changes: other values that a component of a model may receive or return.

They are derived from runs of the reference instead of a catalogue: another value of the same shape
in the same part of the model, another component's parameters, a component that is left out or
applied twice, a residual from another value, a missing mask.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_numpy.parameters import flatten

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import FRAMEWORKS, Site
from ...expectation import components
from ...expectation.paths import Paths, joined
from .dataflow_values import Values, alike, arrays_of, first_of, general, observed, passed_on, relative, summing
from .inputs import defaults

OUTPUT, RESIDUAL, TREE = "output", "residual", "parameters"
AGAIN, NOTHING, NORMED = "applied twice", "nothing", "normed by "
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of a component's output
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
class DataflowChange(Alteration):
    """A component that receives or returns a different value than in the reference.

    parent: the component around it. child: its path within the parent, with `*` for any layer.
    argument: what is replaced: an argument, its `output`, the `residual` added to that, or its
    `parameters`. value: the label of the replacement, or of the change.
    """

    parent: str
    child: str
    argument: str
    value: str

    generated: str = "dataflow change"

    @property
    def name(self) -> str:
        """The change and its place."""
        return f"a dataflow change in the {self.parent} ({self.title})" + (f", only in {self.place}" if self.place else "")

    @property
    def followed(self) -> bool:
        """True, since it applies to one component."""
        return True

    @contextlib.contextmanager
    def altering(self, paths: Paths) -> Iterator[None]:
        """Runs the reference with the other value."""
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
        """The argument or output after a neighboring norm, by its label."""
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


@dataclass(frozen=True)
class _Call:
    """One call inside another component: its arguments, and other values there, by label."""

    site: Site
    component: str
    parent: str
    child: str
    given: Mapping[str, Any]
    others: Mapping[str, Any]
    output: Any
    siblings: Mapping[str, Any]  # the parameters of its sibling components, by relative path


def _calls(case: Case) -> list[_Call]:
    """The calls inside other components in the reference's run on a case."""
    paths = Paths()
    values, calls = Values(paths), []

    def call(function: Callable, given: dict[str, Any]) -> Any:
        path, parent, kind, others = values.begin(given)
        component = paths.around()[0][1]
        result = function(**given)
        if kind and component != "dropout":
            where = Site(path, tuple(paths.layers.items()))
            siblings = values.siblings(parent) if TREE in given else {}
            calls.append(_Call(where, component, kind, relative(path, parent), given, others, first_of(result), siblings))
        values.end(path, parent, kind, given, first_of(result))
        return result

    def residual(name: str, x_btd: np.ndarray) -> np.ndarray:
        for path, kind in paths.around()[:1]:
            site = Site(joined(path, name), tuple(paths.layers.items()))
            calls.append(_Call(site, RESIDUAL, kind, name, {RESIDUAL: x_btd}, values.within(path), None, {}))
        return x_btd

    with observed(call), summing(residual), paths.followed():
        components.answer(case)
    return calls


def dataflow_changes(cases: Sequence[Case]) -> dict[Alteration, list[list[Site]]]:
    """The dataflow changes of float64 cases, most likely first, with their sites by case."""
    found: dict[tuple[str, str, str, str], tuple[Alteration, list[list[Site]]]] = {}
    for index, case in enumerate(cases):
        for call in _calls(case):
            for child in dict.fromkeys((general(call.child), call.child)):
                for argument, value, title, fix in _rewired(call):
                    key = (call.parent, child, argument, value)
                    if key not in found:
                        found[key] = _change(*key, title.format(child=child), fix.format(child=child)), [[] for _ in cases]
                    found[key][1][index].append(call.site)
    return dict(found.values())


def _change(parent: str, child: str, argument: str, value: str, title: str, fix: str) -> DataflowChange:
    return DataflowChange(
        id=f"{parent}.{general(child)}.{argument}={value}", title=title, component=parent, fix=dict.fromkeys(FRAMEWORKS, fix),
        replaces={}, parent=parent, child=child, argument=argument, value=value,
    )  # fmt: skip


Rewired = Iterator[tuple[str, str, str, str]]  # argument, value, title and fix; {child} stands for the component


def _rewired(call: _Call) -> Rewired:
    yield from _values(call)
    yield from _outputs(call)
    if own := call.given.get(TREE):
        for name, tree in call.siblings.items():
            if name != call.child and _interchangeable(own, tree):
                yield TREE, name, f"{{child}} uses the parameters of {name}", "give {child} its own parameters"


def _values(call: _Call) -> Rewired:
    for argument, own in arrays_of(call.given):
        right = next((label for label, value in call.others.items() if value is own), "")
        right = right or (
            "the sum of its sub-layer's input and output" if call.component in ("layer_norm", "rms_norm") else "its own value"
        )
        fix = f"add {right} to the output of {{child}}" if argument == RESIDUAL else f"give {{child}} {right} as {argument}"
        for label in _distinct(call.others, [own]):
            yield argument, label, _given(call, argument, label, right), fix
        for norm in _norms(call, own):
            yield (
                argument,
                f"{NORMED}{norm}",
                f"{{child}} is given its {argument} through {norm}",
                f"give {{child}} its {argument} unchanged",
            )
        if "mask" in argument and defaults(call.component)[argument] is None:
            yield argument, NOTHING, f"{{child}} is given no {argument}", fix


def _outputs(call: _Call) -> Rewired:
    if not isinstance(call.output, np.ndarray) or call.output.dtype.kind != "f":
        return
    fix = "use the output of {child} unchanged"
    given = passed_on(call.given, call.output)
    if given:
        value = f"its {given}"
        yield OUTPUT, value, "{child} is left out and its input passed on", "apply {child}"
        yield OUTPUT, AGAIN, "{child} is applied twice", "apply {child} once"
    for value in CHANGES:
        yield OUTPUT, value, f"the output of {{child}} is {value}", fix
    for norm in _norms(call, call.output):
        yield OUTPUT, f"{NORMED}{norm}", f"the output of {{child}} also passes through {norm}", fix
    for label in _distinct(call.others, [call.output, call.given.get(given)]):
        yield OUTPUT, label, f"{label} stands for the output of {{child}}", fix


def _norms(call: _Call, own: np.ndarray) -> Iterator[str]:
    """The sibling norms that fit a value; norms between a stack's layers are a known bug."""
    for name, tree in call.siblings.items():
        if name != "final_norm" and {"scale", "offset"} == set(tree) and tree["scale"].shape == own.shape[-1:] and own.ndim == 3:
            yield name


def _given(call: _Call, argument: str, label: str, right: str) -> str:
    """The title of a change that passes the value of this label to a component."""
    if argument == RESIDUAL:
        return f"the residual around {{child}} is {label}, instead of {right}"
    sublayer = call.child.removesuffix("_norm")
    if call.component in ("layer_norm", "rms_norm") and label == f"the output of {sublayer}":
        return f"the residual around {sublayer} is missing: {{child}} is given only {label}"
    return f"{{child}} is given {label} as {argument}, instead of {right}"


def _distinct(others: Mapping[str, Any], taken: Sequence[Any]) -> Iterator[str]:
    """The labels of distinct values that fit in place of the first one taken."""
    taken = list(taken)
    for label, value in others.items():
        if alike(value, taken[0]) and not any(value is other or np.array_equal(value, other) for other in taken):
            taken.append(value)
            yield label


def _interchangeable(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    shapes = [{name: np.shape(value) for name, value in flatten(tree).items()} for tree in (first, second)]
    return shapes[0] == shapes[1]
