"""The family of other inputs: the output is what the reference gives if an input is left out, exchanged, shifted or inverted."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ...case import Case
from ...expectation import components
from ...stored import changed
from .answered import Answered, Predicted, Prediction

Change = Callable[[Case], Case | None]  # None of a case that cannot be changed so
FAILURES = (ValueError, IndexError, KeyError)


def other_inputs(answered: Answered) -> Iterator[Prediction]:
    """Proposes all other inputs of a failing case."""
    for words, change in _changes(answered.case):
        yield Prediction("inputs", f"{{output}} is what the reference gives {words}", 87, _predict(change))


def _predict(change: Change) -> Callable[[Answered], Predicted]:
    def predict(answered: Answered) -> Predicted:
        try:
            changed = change(answered.case.at("float64"))
            if changed is None:
                return answered.reference
            return components.answer(changed)[answered.name].astype(np.float64)
        except FAILURES:
            return None

    return predict


def _changes(case: Case) -> Iterator[tuple[str, Change]]:
    given = {name: value for name, value in case.inputs.items() if value is not None and not name.startswith("keep")}
    defaults = _defaults(case)
    for name, value in given.items():
        if isinstance(value, bool | np.bool_):
            yield f"with {name}={not value}", _set(name, lambda value: not value)
        elif isinstance(value, np.ndarray):
            if defaults.get(name, "") is None:
                yield f"without `{name}`: it is ignored", _set(name, lambda value: None)
            yield from ((f"with `{name}` {words}", _set(name, function)) for words, function in _altered(value))
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    for (first, one), (second, other) in itertools.permutations(arrays.items(), 2):
        if one.dtype.kind == other.dtype.kind and one.shape[-1] == other.shape[-1] and one.ndim == other.ndim:
            yield f"with `{second}` for `{first}`, too", _replace(first, second)
            if first < second:
                yield f"with `{first}` and `{second}` exchanged", _exchange(first, second)
    yield from _parameters(case)


def _defaults(case: Case) -> Mapping[str, Any]:
    declared = components.signature_of(case.component).parameters
    return {name: parameter.default for name, parameter in declared.items()}


def _altered(value: np.ndarray) -> Iterator[tuple[str, Callable[[np.ndarray], Any]]]:
    """What may have happened to an input before its use."""
    if value.dtype.kind == "b":
        yield "inverted", np.logical_not
        if value.ndim == 4:
            yield "with queries and keys exchanged", lambda mask: mask.swapaxes(2, 3)
            yield "of the batch's first row for all rows", lambda mask: mask[:1]
            yield "of the first head for all heads", lambda mask: mask[:, :1]
    if value.dtype.kind in "iu":
        yield from ((f"{'plus' if n > 0 else 'minus'} {abs(n)}", _add(n)) for n in (1, -1, 2, -2))
    if value.ndim >= 2:
        yield "in reverse order along its second axis", lambda array: array[:, ::-1]
        yield "shifted by one along its second axis, the first repeated", lambda array: np.concatenate([array[:, :1], array[:, :-1]], 1)
        yield "shifted by one along its second axis, the last repeated", lambda array: np.concatenate([array[:, 1:], array[:, -1:]], 1)
        yield "in reverse order along the batch", lambda array: array[::-1]
        yield "of the batch's first row in all rows", lambda array: np.broadcast_to(array[:1], array.shape)


def _add(count: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda value: value + count


def _set(name: str, function: Callable[[Any], Any]) -> Change:
    def change(case: Case) -> Case | None:
        if case.inputs.get(name) is None:
            return None
        return dataclasses.replace(case, inputs={**case.inputs, name: function(case.inputs[name])})

    return change


def _replace(first: str, second: str) -> Change:
    return lambda case: dataclasses.replace(case, inputs={**case.inputs, first: case.inputs[second]})


def _exchange(first: str, second: str) -> Change:
    return lambda case: dataclasses.replace(case, inputs={**case.inputs, first: case.inputs[second], second: case.inputs[first]})


def _parameters(case: Case) -> Iterator[tuple[str, Change]]:
    """Leaves out parameters, one by one and all of a kind."""
    kinds = {"bias": np.zeros_like, "offset": np.zeros_like, "scale": np.ones_like}
    for name in case.parameters:
        if unused := kinds.get(name.rpartition(".")[2]):
            yield f"without `{name}`", _unused(name, unused)
    for kind, unused in kinds.items():
        ending = f".{kind}"
        for part in dict.fromkeys(
            ".".join(name.split(".")[-2:]) for name in case.parameters if name.endswith(ending) and "layers." in name
        ):
            yield f"without any `{part}`", _unused(f".{part}", unused)
        if sum(name.endswith(ending) for name in case.parameters) > 1:
            yield f"without any {kind}", _unused(ending, unused)


def _unused(ending: str, unused: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(case: Case) -> Case | None:
        if not any(name.endswith(ending) for name in case.parameters):
            return None
        parameters = changed(case.parameters, lambda name, value: unused(value) if name.endswith(ending) else value)
        return dataclasses.replace(case, parameters=parameters)

    return change
