"""Whether a port gives the same answer to the same question again, and what makes it draw."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from ...case import Case
from ...catalogue import Alteration
from .. import altered
from ..altered import Combination, Outputs
from ..hypotheses import Hypotheses
from .evidence import distance

RANDOM = "two evaluations of the same input differ"  # how a worker begins to say so
DRAWS = 4  # answers that show how far random ones lie apart


def twice(cases: Iterable[Case], count: int | None = None) -> list[Case]:
    """The cases, of which the first `count`, or all, are evaluated two times."""
    return [dataclasses.replace(case, twice=case.twice or count is None or index < count) for index, case in enumerate(cases)]


def made_random(hypotheses: Hypotheses, indices: Iterable[int]) -> list[int]:
    """Those of the probes to which the reference gives another answer each time with some defect that draws at random."""
    return [index for index in indices if any(_draws(defect, hypotheses, index) for defect in hypotheses.random)]


def random_defects(hypotheses: Hypotheses, answers: Mapping[int, Sequence[Outputs]]) -> list[Combination]:
    """The defects that make exactly these probes random; none where a port's answers differ by no more than rounding.

    answers: of the port, DRAWS to every probe to which two of its answers were seen to differ.
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
    """Whether a port's answers to some probe differ by no more than rounding."""
    return any(_spread(given) <= 2 * max(one.bound for one in hypotheses.clean[index].values()) for index, given in answers.items())


def dropping(hypotheses: Hypotheses, answers: Mapping[int, Sequence[Outputs]]) -> bool:
    """Whether every probe that is random, by more than rounding, has a rate of dropout that is not 0, and another probe has none."""
    configs = [dataclasses.asdict(probe.config) for probe in hypotheses.probes]
    drops = [any(value for name, value in config.items() if name.endswith("dropout_rate")) for config in configs]
    return bool(answers) and not all(drops) and all(drops[index] for index in answers) and not _rounds(hypotheses, answers)


def _draws(defect: Alteration, hypotheses: Hypotheses, index: int) -> bool:
    """Whether the answers of the reference with this defect to a probe differ."""
    draws = [altered.answer((defect,), hypotheses.probes[index]) for _ in range(DRAWS)]
    return _spread([answer for answer in draws if answer]) > 0


def _spread(answers: Sequence[Outputs]) -> float:
    """The largest difference between two of the answers."""
    pairs = itertools.combinations(answers, 2)
    return max((distance(first[name], second[name]) for first, second in pairs for name in first.keys() & second.keys()), default=0.0)
