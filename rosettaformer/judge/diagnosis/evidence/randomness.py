"""Whether a port gives equal outputs for equal inputs, and what makes it random."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from ...case import Case
from ...catalogue import Alteration
from .. import altered
from ..altered import Combination, Outputs
from ..hypotheses import Hypotheses
from .evidence import distance

RANDOM = "two evaluations of the same input differ"  # the start of a worker's message about it
DRAWS = 4  # outputs that show how far random ones differ


def twice(cases: Iterable[Case], count: int | None = None) -> list[Case]:
    """The cases, the first `count` or all of them to be evaluated twice."""
    return [dataclasses.replace(case, twice=case.twice or count is None or index < count) for index, case in enumerate(cases)]


def made_random(hypotheses: Hypotheses, indices: Iterable[int]) -> list[int]:
    """The probes on which some known bug makes the reference random."""
    return [index for index in indices if any(_draws(defect, hypotheses, index) for defect in hypotheses.random)]


def random_defects(hypotheses: Hypotheses, answers: Mapping[int, Sequence[Outputs]]) -> list[Combination]:
    """The known bugs that make exactly these probes random; empty if the port's outputs differ only
    by rounding.

    answers: DRAWS outputs of the port for every probe on which it is random.
    """
    if _rounds(hypotheses, answers):
        return []
    every = range(len(hypotheses.probes))
    found: dict[str, Combination] = {}
    for defect in hypotheses.random:
        if defect.id not in found and {index for index in every if _draws(defect, hypotheses, index)} == answers.keys():
            found[defect.id] = (defect,)
    return list(found.values())


def _rounds(hypotheses: Hypotheses, answers: Mapping[int, Sequence[Outputs]]) -> bool:
    """Whether a port's outputs for some probe differ only by rounding."""
    return any(_spread(given) <= 2 * max(one.bound for one in hypotheses.clean[index].values()) for index, given in answers.items())


def dropping(hypotheses: Hypotheses, answers: Mapping[int, Sequence[Outputs]]) -> bool:
    """Whether dropout explains the randomness: only probes with a nonzero rate are random."""
    configs = [dataclasses.asdict(probe.config) for probe in hypotheses.probes]
    drops = [any(value for name, value in config.items() if name.endswith("dropout_rate")) for config in configs]
    return bool(answers) and not all(drops) and all(drops[index] for index in answers) and not _rounds(hypotheses, answers)


def _draws(defect: Alteration, hypotheses: Hypotheses, index: int) -> bool:
    """Whether the outputs of the reference with this bug differ between runs of a probe."""
    if not hypotheses.alters(defect, index):
        return False
    draws = [altered.answer((defect,), hypotheses.probes[index]) for _ in range(DRAWS)]
    return _spread([answer for answer in draws if answer]) > 0


def _spread(answers: Sequence[Outputs]) -> float:
    """The largest difference between any two of the outputs."""
    pairs = itertools.combinations(answers, 2)
    return max((distance(first[name], second[name]) for first, second in pairs for name in first.keys() & second.keys()), default=0.0)
