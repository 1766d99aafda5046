"""One more case through a port's own module, which tells alterations apart that the suite's cases do not.

A case that the port was asked already is changed so that the alterations differ by far more than what passes: its logits are made large,
its padding is taken away, its numbers are scaled. What the port answers leaves those that answer the same.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..case import Case
from ..reference.components import FORWARD
from ..status import Kind
from . import altered
from .altered import Combination, reversed_rows, separates
from .search import Search

BASES = 3  # cases that fail, and as many that do not, from which further ones are made
LARGE, SCALES = 1e5, (1e3, 1e-3)
LOGITS = ("query.kernel", "query.bias", "query_bthk", "logits")  # what the logits of an attention are proportional to

Ask = Callable[[Iterable[Case]], list[tuple[Case, str, Any]]]


def told_apart(found: list[Combination], search: Search, ask: Ask) -> tuple[list[Combination], str]:
    """Those of the combinations that equal the port's answers to further cases, too, and what was asked, in words; all of them, and no
    words, where no further case tells them apart or the port's answer to it is none of theirs."""
    words = []
    probes = search.hypotheses.probes
    bases = [probes[index] for index in (*search.cheapest()[:BASES], *search.right()[:BASES])]
    for changed, case in _changed(bases) if len(found) > 1 and bases[0].component in FORWARD else ():
        if len(found) > 1 and _differ(found, case):
            kept = _matching(found, case, ask)
            if kept and len(kept) < len(found):
                others = " and ".join(dict.fromkeys(one.id for other in found if other not in kept for one in other if one not in kept[0]))
                words.append(f"  told from {others} by {case.id}, asked again {changed}")
                found = kept
    return found, "\n".join(words)


def _differ(found: list[Combination], case: Case) -> bool:
    """Whether one of them answers the case otherwise than another one, by far more than what passes."""
    first, *others = [altered.answer(combination, case.at("float64")) for combination in found]
    different = [one for one, answer in zip(found[1:], others, strict=True) if altered.differ(first, answer)]
    return first is not None and any(separates(case, found[0], other) for other in different)


def _matching(found: list[Combination], case: Case, ask: Ask) -> list[Combination]:
    """Those that equal the port's answer to the case; none where it has none."""
    ((_, kind, answer),) = ask([case]) or [(case, "", None)]
    if kind != Kind.OUTPUTS:
        return []
    return [combination for combination in found if altered.equal(altered.expected(combination, case, answer), answer)]


def _changed(bases: list[Case]) -> Iterator[tuple[str, Case]]:
    """The cases, each changed in every way, and the way in words."""
    for words, change in CHANGES.items():
        for case in bases:
            inputs, parameters = change(case, case.inputs), change(case, case.parameters)
            if inputs is not case.inputs or parameters is not case.parameters:
                yield words, dataclasses.replace(case, inputs=inputs, parameters=parameters, twice=False)


Values = Mapping[str, Any]
Change = Callable[[Case, Values], Values]


def _times(factor: float, ends: tuple[str, ...] = ("",)) -> Change:
    """The floating numbers whose names end so, times a factor."""

    def change(case: Case, values: Values) -> Values:
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"}
        meant = [name for name in arrays if name.endswith(ends)]
        return dict(values) | {name: (arrays[name] * factor).astype(arrays[name].dtype) for name in meant} if meant else values

    return change


def _inputs_times(factor: float) -> Change:
    return lambda case, values: _times(factor)(case, values) if values is case.inputs else values


def _without_masks(case: Case, values: Values) -> Values:
    masks = [name for name in values if "mask" in name] if values is case.inputs else []
    return {name: value for name, value in values.items() if name not in masks} if masks else values


def _without_padding(case: Case, values: Values) -> Values:
    """The ids, another one in place of padding."""
    tokens = [name for name in ("source", "target") if isinstance(values.get(name), np.ndarray)] if values is case.inputs else []
    padding = case.config.padding_id
    if padding is None or not any((values[name] == padding).any() for name in tokens):
        return values
    other = 1 if padding != 1 else 2
    return dict(values) | {name: np.where(values[name] == padding, other, values[name]).astype(values[name].dtype) for name in tokens}


def _reversed(case: Case, values: Values) -> Values:
    return reversed_rows(case).inputs if values is case.inputs else values


CHANGES: dict[str, Change] = {
    "with its rows in reverse order": _reversed,
    "with large logits": _times(LARGE, LOGITS),
    "with large logits of the other sign": _times(-LARGE, LOGITS),
    "without a mask": _without_masks,
    "without padding": _without_padding,
    **{f"with its inputs times {factor:g}": _inputs_times(factor) for factor in SCALES},
}
