"""Inputs that a port may use differently (ignored, swapped, shifted, inverted), and parameters that
it may ignore.

An ignored optional array is also an alteration of the reference.
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import on_arguments, reading, setting
from ...expectation import components
from ...expectation.components import FORWARD
from ...stored import changed

OTHER = "different input"
LASTS = [2**power - 1 for power in range(3, 20)]  # numbers that a table may end at
Change = Callable[[Case], Case | None]  # None if it does not apply to the case


class OtherInput(NamedTuple):
    """A different use of an input.

    words: what the reference gets. change: changes a case. ignored: the ignored optional array;
    empty for other changes.
    """

    words: str
    change: Change
    ignored: str = ""


@functools.cache
def defaults(component: str) -> Mapping[str, Any]:
    """The arguments of a component's function with their defaults."""
    return {name: one.default for name, one in components.signature_of(component).parameters.items()}


def _optional(cases: Iterable[Case]) -> list[str]:
    """The optional arrays in some of these cases of one component."""
    cases = list(cases)
    absent = [name for name, default in defaults(cases[0].component).items() if default is None]
    return [name for name in absent if any(isinstance(case.inputs.get(name), np.ndarray) for case in cases)]


def ignored(probes: Sequence[Case]) -> dict[str, Alteration]:
    """The alterations that ignore an optional array, by its name."""
    component = probes[0].component if probes else ""
    if component not in FORWARD or any(probe.component != component for probe in probes):
        return {}
    return {
        name: setting(f"{component}.{name}=ignored", component, f"`{name}` is ignored", f"use `{name}`", on_arguments(**{name: None}))
        for name in _optional(probes)
    }


def other_inputs(case: Case) -> Iterator[OtherInput]:
    """All different uses of a case's inputs."""
    given = {name: value for name, value in case.inputs.items() if value is not None and not name.startswith("keep")}
    optional = _optional([case])
    for name, value in given.items():
        if isinstance(value, bool | np.bool_):
            yield OtherInput(f"with {name}={not value}", _set(name, lambda value: not value))
        elif isinstance(value, np.ndarray | int | float):
            if name in optional:
                yield OtherInput(f"without `{name}`: it is ignored", _set(name, lambda value: None), ignored=name)
            yield from (OtherInput(f"with `{name}` {words}", _set(name, function)) for words, function in _altered(value))
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    for (first, one), (second, other) in itertools.permutations(arrays.items(), 2):
        if one.dtype.kind == other.dtype.kind and one.shape[-1] == other.shape[-1] and one.ndim == other.ndim:
            yield OtherInput(f"with `{second}` in place of `{first}`", _replace({first: second}))
            if first < second:
                yield OtherInput(f"with `{first}` and `{second}` swapped", _replace({first: second, second: first}))
    yield from _without_parameters(case)


def read_otherwise(case: Case) -> Iterator[Alteration]:
    """The other inputs of a case as alterations."""
    for one in other_inputs(case):
        id_, title = f"{case.component} {one.words}", f"the output is the reference's {one.words}"
        yield reading(id_, case.component, title, "use the inputs as they are given", functools.partial(_read, one.change), OTHER)


def _read(change: Change, case: Case) -> Case:
    return change(case) or case


def reversed_rows(case: Case) -> Case:
    """The case with its batch reversed; unchanged with one row or dropout masks."""
    rows = {name: value for name, value in case.inputs.items() if isinstance(value, np.ndarray) and _of_rows(name, value)}
    if not rows or any(name.startswith("keep") for name in case.inputs):
        return case
    return dataclasses.replace(case, twice=False).given({name: np.ascontiguousarray(value[::-1]) for name, value in rows.items()})


def _of_rows(name: str, value: np.ndarray) -> bool:
    """Whether an array has a batch axis: its axes start with b, or its name has none."""
    axes = name.rpartition("_")[2] if "_" in name else "b"
    return value.ndim > 1 and len(value) > 1 and axes.startswith("b")


def _altered(value: np.ndarray | float) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Changes of an input before its use, with their words."""
    kind = value.dtype.kind if isinstance(value, np.ndarray) else "i" if isinstance(value, int) else "f"
    if kind in "iu":
        yield from ((f"{'plus' if n > 0 else 'minus'} {abs(n)}", functools.partial(operator.add, n)) for n in (1, -1, 2, -2))
        yield from ((f"minus 1, but at least {least}", functools.partial(_before, least)) for least in (0, 1))
    if not isinstance(value, np.ndarray):
        return
    if kind in "iu":
        for last in (last for last in LASTS if last < value.max(initial=0)):
            yield f"of at most {last}", functools.partial(np.minimum, last)
            yield f"modulo {last + 1}", functools.partial(modulo, last + 1)
    if kind == "b":
        yield "inverted", np.logical_not
        if value.ndim == 4:
            yield "with queries and keys swapped", lambda mask: mask.swapaxes(2, 3)
            yield "of the first batch row used for all rows", lambda mask: mask[:1]
            yield "of the first head used for all heads", lambda mask: mask[:, :1]
    if value.ndim >= 2:
        yield "reversed along its second axis", lambda array: array[:, ::-1]
        yield "shifted by one along its second axis, repeating the first", lambda array: np.concatenate([array[:, :1], array[:, :-1]], 1)
        yield "shifted by one along its second axis, repeating the last", lambda array: np.concatenate([array[:, 1:], array[:, -1:]], 1)
        yield "reversed along the batch", lambda array: array[::-1]
        yield "of the first batch row in all rows", lambda array: np.broadcast_to(array[:1], array.shape)


def _before(least: int, value: Any) -> Any:
    """The whole number before each of these, but at least `least`."""
    return np.maximum(value - 1, least) if isinstance(value, np.ndarray) else max(value - 1, least)


def modulo(count: int, value: np.ndarray) -> np.ndarray:
    """The remainder of whole numbers."""
    return value % count


def _set(name: str, function: Callable[[Any], Any]) -> Change:
    def change(case: Case) -> Case | None:
        if case.inputs.get(name) is None:
            return None
        return case.given({name: function(case.inputs[name])})

    return change


def _replace(others: Mapping[str, str]) -> Change:
    return lambda case: case.given({name: case.inputs[other] for name, other in others.items()})


def _without_parameters(case: Case) -> Iterator[OtherInput]:
    """Ignores parameters, one by one and all of a kind."""
    kinds = {"bias": np.zeros_like, "offset": np.zeros_like, "scale": np.ones_like}
    for name in case.parameters:
        if unused := kinds.get(name.rpartition(".")[2]):
            yield OtherInput(f"without `{name}`", _unused(name, unused))
    for kind, unused in kinds.items():
        ending = f".{kind}"
        for part in dict.fromkeys(
            ".".join(name.split(".")[-2:]) for name in case.parameters if name.endswith(ending) and "layers." in name
        ):
            yield OtherInput(f"without any `{part}`", _unused(f".{part}", unused))
        if sum(name.endswith(ending) for name in case.parameters) > 1:
            yield OtherInput(f"without any {kind}", _unused(ending, unused))


def _unused(ending: str, unused: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(case: Case) -> Case | None:
        if not any(name.endswith(ending) for name in case.parameters):
            return None
        parameters = changed(case.parameters, lambda name, value: unused(value) if name.endswith(ending) else value)
        return dataclasses.replace(case, parameters=parameters)

    return change
