"""Selects among several explanations: the plainest, and those that also match the port on further
cases.

A case is changed so that the explanations differ by far more than the tolerance: larger logits, no
padding, scaled inputs. The port's output for it rules some of them out.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...case import Case
from ...expectation.components import FORWARD
from ...status import Kind
from .. import altered
from ..altered import Combination, separates
from ..hypotheses.inputs import Change, reversed_rows
from ..words import told_apart as ruled_out
from .evidence import Evidence

BASES = 3  # failing cases, and as many correct ones, from which further cases are made
LARGE, SCALES = 1e5, (1e3, 1e-3)
LOGITS = ("query.kernel", "query.bias", "query_bthk", "logits")  # arrays that attention logits are proportional to

Ask = Callable[[Iterable[Case]], list[tuple[Case, str, Any]]]


def plainest(found: list[Combination], evidence: Evidence, holds: Callable[[Combination], bool]) -> list[Combination]:
    """The explanations, the plainest first: if ignoring an input explains the outputs, those that
    do exactly that come first.

    An alteration does exactly that if it equals the reference without that input on every probe,
    also with the rows of the batch reversed.
    """
    if len(found[0]) > 1:
        return found
    for one in evidence.hypotheses.ignored.values():
        if holds((one,)):
            said = [combination for combination in found if _same(combination, (one,), evidence)]
            return [*(said or [(one,)]), *(combination for combination in found if combination not in said)]
    return found


def _same(first: Combination, second: Combination, evidence: Evidence) -> bool:
    """Whether two altered references are the same on the probes in either order of their rows."""
    cases = [probe.at("float64") for probe in evidence.probes]
    return not any(separates(case, first, second) for case in (*cases, *map(reversed_rows, cases)))


def told_apart(found: list[Combination], evidence: Evidence, ask: Ask) -> tuple[list[Combination], list[str]]:
    """The combinations that also match the port on further cases, and what was asked, in words.

    Returns all of them, and no words, if no further case separates them or none matches the port's
    output for it.
    """
    words = []
    probes = evidence.probes
    bases = [probes[index] for index in (*evidence.cheapest()[:BASES], *evidence.right()[:BASES])]
    for changed, case in _changed(bases) if len(found) > 1 and bases[0].component in FORWARD else ():
        if len(found) > 1 and _some_differ(found, case):
            kept = _those_equal(found, case, ask)
            if kept and len(kept) < len(found):
                others = " and ".join(dict.fromkeys(one.id for other in found if other not in kept for one in other if one not in kept[0]))
                words.append(ruled_out(others, case.id, changed))
                found = kept
    return found, words


def _some_differ(found: list[Combination], case: Case) -> bool:
    """Whether two of them differ on the case by far more than the tolerance."""
    first, *others = [altered.answer(combination, case.at("float64")) for combination in found]
    different = [one for one, answer in zip(found[1:], others, strict=True) if altered.differ(first, answer)]
    return first is not None and any(separates(case, found[0], other) for other in different)


def _those_equal(found: list[Combination], case: Case, ask: Ask) -> list[Combination]:
    """Those that match the port's output for the case; empty if it has none."""
    ((_, kind, answer),) = ask([case]) or [(case, "", None)]
    if kind != Kind.OUTPUTS:
        return []
    return [combination for combination in found if altered.equal(altered.expected(combination, case, answer), answer)]


def _changed(bases: list[Case]) -> Iterator[tuple[str, Case]]:
    """Every change of every case, with its name."""
    for words, change in CHANGES.items():
        for case in bases:
            if changed := change(case):
                yield words, dataclasses.replace(changed, twice=False)


def _times(factor: float, *ends: str) -> Change:
    """Multiplies floating-point inputs; with ends, only inputs and parameters named like that."""

    def larger(values: Mapping[str, Any]) -> dict[str, Any]:
        floats = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"}
        return {name: (value * factor).astype(value.dtype) for name, value in floats.items() if name.endswith(ends or "")}

    def change(case: Case) -> Case | None:
        inputs, parameters = larger(case.inputs), larger(case.parameters) if ends else {}
        if not inputs and not parameters:
            return None
        weights = {**case.parameters, **parameters} if parameters else case.parameters
        return dataclasses.replace(case, inputs={**case.inputs, **inputs}, parameters=weights)

    return change


def _without_masks(case: Case) -> Case | None:
    inputs = {name: value for name, value in case.inputs.items() if "mask" not in name}
    return dataclasses.replace(case, inputs=inputs) if len(inputs) < len(case.inputs) else None


def _without_padding(case: Case) -> Case | None:
    """Replaces padding with another id."""
    padding, other = case.config.padding_id, 1 if case.config.padding_id != 1 else 2
    tokens = {name: value for name in ("source", "target") if isinstance(value := case.inputs.get(name), np.ndarray)}
    if padding is None or not any((value == padding).any() for value in tokens.values()):
        return None
    full = {name: np.where(value == padding, other, value).astype(value.dtype) for name, value in tokens.items()}
    return dataclasses.replace(case, inputs={**case.inputs, **full})


def _reversed(case: Case) -> Case | None:
    other = reversed_rows(case)
    return other if other is not case else None


CHANGES: dict[str, Change] = {
    "with its rows in reverse order": _reversed,
    "with large logits": _times(LARGE, *LOGITS),
    "with large logits of the other sign": _times(-LARGE, *LOGITS),
    "without a mask": _without_masks,
    "without padding": _without_padding,
    **{f"with its inputs times {factor:g}": _times(factor) for factor in SCALES},
}
