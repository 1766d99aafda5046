"""Near ties of a search: a port may choose otherwise than the reference if rounding decides which score is larger.

A search's tokens are compared exactly, and one choice decides all that follow. So if a port's tokens differ, the search runs again and
follows the port at every near tie, where a score error within its bound would make the reference choose the same, and chooses for itself
everywhere else. The port must give the tokens of this run, and their scores within its tolerance. That tolerance comes from the orders of
`tolerance`, which repeat the choices of this run, so that the noise is the noise of the scores that are compared.
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

ROUNDS = 12  # runs at most, until a run's choices are those that its own noise allows


def followed(
    case: Case, before: dict[str, Expectation], answer: Any, ask: Answer = components.answer, rounded: bool = False
) -> dict[str, Expectation]:
    """The expectation of a case, cast to its dtype, for a port that gave this answer; only a search with other tokens changes it.

    before: what `tolerance.expect` gave, by `ask` and `rounded`.
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
    """Whether the answer is well formed and has other tokens."""
    if not isinstance(answer, Mapping) or answer.keys() != before.keys():
        return False
    if any(not isinstance(answer[name], np.ndarray) or answer[name].shape != one.reference.shape for name, one in before.items()):
        return False
    name = next(iter(before))
    ids = answer[name].dtype.kind in "iu" and np.all((answer[name] >= 0) & (answer[name] < case.config.target_vocabulary))
    return bool(ids) and not np.array_equal(answer[name], before[name].reference)


def _bounds(reference: Mapping[Key, np.ndarray], runs: list[dict[Key, np.ndarray]]) -> Bounds:
    """The bounds of a run's scores, by the scores of the orders. A step's bound is the largest up to it, since scores are sums."""
    steps: dict[str, dict[int, float]] = {}
    for kind, step in dict.fromkeys((kind, step) for kind, _, step in reference):
        keys = [key for key in reference if (key[0], key[2]) == (kind, step) and all(key in run for run in runs)]
        parts = [np.concatenate([run[key] for key in keys]) for run in (reference, *runs)] if keys else []
        bound = expectation(parts[0].astype(np.float64), parts[1:]).bound if keys else 0.0
        steps.setdefault(kind, {})[step] = bound
    return lambda kind, step: max((bound for other, bound in steps.get(kind, {}).items() if other <= step), default=0.0)
