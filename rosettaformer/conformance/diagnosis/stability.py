"""Whether a port gives the same answer to the same question: evaluated again, in another batch, with longer padding."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..case import Case
from .altered import Combination
from .hypotheses import Hypotheses
from .search import Search

__all__ = ["RANDOM", "random_defects", "symptoms", "twice"]

RANDOM = "two evaluations of the same input differ"  # how a worker begins to say so
LONGER = 2  # by so many columns is padding made longer

Ask = Callable[[Iterable[Case]], list[tuple[Case, str, Any]]]


def twice(cases: Iterable[Case], count: int | None = None) -> list[Case]:
    """The cases, of which so many, or all, are evaluated two times."""
    return [dataclasses.replace(case, twice=case.twice or count is None or index < count) for index, case in enumerate(cases)]


def random_defects(hypotheses: Hypotheses, unstable: set[int]) -> list[Combination]:
    """The defects that make exactly these probes random."""
    return [(one,) for one in hypotheses.defects if hypotheses.unstable(one) == unstable]


def symptoms(search: Search, ask: Ask) -> list[str]:
    """What the port's answers depend on and should not, in words. ask: puts further cases to the port."""
    found = {}
    for index in search.failing:
        case, answer = search.hypotheses.probes[index], search.answers[index]
        for symptom, changed, part in _variants(case):
            if answer is None or "output" not in answer or symptom in found:
                continue
            other = [outputs for _, kind, outputs in ask([changed]) if kind == "outputs"]
            bound = 2 * search.hypotheses.clean[index]["output"].bound
            if other and _distance(part(answer["output"]), part(other[0]["output"])) > bound:
                found[symptom] = f"{symptom} ({case.id})"
    return list(found.values())


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    if first.shape != second.shape:
        return np.inf
    difference = np.abs(first.astype(np.float64) - second.astype(np.float64))
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


def _variants(case: Case) -> Iterator[tuple[str, Case, Callable[[np.ndarray], np.ndarray]]]:
    """What the port's answer would depend on, the changed case, and the part of both outputs that must be equal."""
    batch = max((value.shape[0] for value in case.inputs.values() if isinstance(value, np.ndarray) and value.ndim), default=0)
    if batch > 1:
        first = {name: value[:1] if _batched(value, batch) else value for name, value in case.inputs.items()}
        yield "a row's output depends on the other rows of its batch", dataclasses.replace(case, inputs=first), lambda output: output[:1]
    padding, tokens = case.config.padding_id, ("source", "target")
    kept = any(name.startswith("keep") for name in case.inputs)  # masks of dropout have the length of the padding
    if case.component == "transformer" and padding is not None and not kept and all(_ids(case.inputs[name]) for name in tokens):
        width = case.inputs["target"].shape[1]
        longer = {name: _padded(value, padding if _ids(value) else False) for name, value in case.inputs.items()}
        changed = dataclasses.replace(case, inputs=longer)
        yield "the output depends on how long the padding is", changed, lambda output: output[:, :width]


def _batched(value: Any, batch: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 1 and value.shape[0] == batch


def _ids(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "iu"


def _padded(value: np.ndarray, filling: Any) -> np.ndarray:
    return np.concatenate([value, np.full((len(value), LONGER), filling, value.dtype)], axis=1)
