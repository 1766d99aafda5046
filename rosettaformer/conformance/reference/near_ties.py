"""Near ties of a search: places at which a port chooses differently from the reference by scores that rounding alone may reorder.

A search's tokens are compared exactly, and one choice decides all that follow. If a port's tokens differ, the reference runs again: it
takes the port's choice wherever it would make that choice itself if its scores were off by at most the bound of their noise, and its own
anywhere else. Then the port's tokens must be this run's tokens, and its scores within this run's expectation. The noise is that of the very
scores that are compared: every order of `tolerance` makes this run's choices.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case
from . import components
from .choices import Key
from .replay import ANY, BeamReplay, Bounds, Hypothesis, TokenReplay
from .tolerance import Answer, Expectation, chosen, expectation, searched

__all__ = ["followed"]

ROUNDS = 12  # runs of the search until its choices are those that its own noise allows


def followed(
    case: Case, before: dict[str, Expectation], answer: Any, ask: Answer = components.answer, rounded: bool = False
) -> dict[str, Expectation]:
    """Returns what is expected of a port that gave this answer to a case that has been cast to its dtype: a new expectation if a search
    found other tokens.

    ask and rounded: as in `tolerance.expect`, which gave the expectation before.
    """
    if case.component not in components.SEARCHES or not _differs(case, before, answer):
        return before
    bounds: Bounds = lambda kind, step: ANY  # noqa: E731
    made: Mapping[Key, Any] = {}
    rejected: set[Hypothesis] = set()
    for _ in range(ROUNDS):
        replay = BeamReplay(case, answer, bounds, rejected) if case.component == "beam_search" else TokenReplay(case, answer, bounds)
        reference = chosen(case, replay, ask, rounded)
        if replay.made != made:  # with the same choices every order gives the same scores
            found, scores = searched(case, replay.made, reference, ask)
        tokens = next(iter(found))
        others = replay.others(found[tokens].reference)
        if replay.made == made and others <= rejected:
            break
        made, bounds, rejected = replay.made, _bounds(replay.scores, scores), rejected | others
    note = "; ".join(replay.notes(found[tokens].reference))
    return found | {tokens: dataclasses.replace(found[tokens], note=note)}


def _differs(case: Case, before: dict[str, Expectation], answer: Any) -> bool:
    """Whether the answer has other tokens, and is otherwise a valid answer."""
    if not isinstance(answer, Mapping) or answer.keys() != before.keys():
        return False
    if any(not isinstance(answer[name], np.ndarray) or answer[name].shape != one.reference.shape for name, one in before.items()):
        return False
    name = next(iter(before))
    ids = answer[name].dtype.kind in "iu" and np.all((answer[name] >= 0) & (answer[name] < case.config.target_vocabulary))
    return bool(ids) and not np.array_equal(answer[name], before[name].reference)


def _bounds(reference: Mapping[Key, np.ndarray], runs: list[dict[Key, np.ndarray]]) -> Bounds:
    """Returns the bounds of a run's scores, from the orders' scores: the largest of a kind up to each step, since scores are sums."""
    steps: dict[str, dict[int, float]] = {}
    for kind, step in dict.fromkeys((kind, step) for kind, _, step in reference):
        keys = [key for key in reference if (key[0], key[2]) == (kind, step) and all(key in run for run in runs)]
        parts = [np.concatenate([run[key] for key in keys]) for run in (reference, *runs)] if keys else []
        bound = expectation(parts[0].astype(np.float64), parts[1:]).bound if keys else 0.0
        steps.setdefault(kind, {})[step] = bound
    return lambda kind, step: max((bound for other, bound in steps.get(kind, {}).items() if other <= step), default=0.0)
