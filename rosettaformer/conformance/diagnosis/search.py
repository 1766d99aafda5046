"""Which alterations of the truth give a port's outputs: the search behind diagnosis.

An alteration is a defect of the catalogue or a setting. It explains a port where the altered truth equals the port's answers within the
tolerance, derived from the altered truth itself, on every probe: those that the port fails and those that it passes.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import tolerance, truth
from ..case import Case
from ..compare import compare
from ..defects import Defect, injected

__all__ = ["Answers", "Combination", "Hypotheses", "Search", "expected", "separates"]

# A first look at the float64 answer alone rejects what lies further away than this many times the error of plain arithmetic, by the
# dtype's bytes: an alteration may have a larger error of its own.
FAR = {8: 1000.0, 4: 1000.0, 2: 30.0}

Combination = tuple[Defect, ...]
Answers = Sequence[Mapping[str, Any] | None]  # a port's outputs, probe by probe; None where it ended with an error


class Hypotheses:
    """Defects and settings, and what the truth altered by them answers to some probes; each answer is computed once and kept.

    probes: cases in the dtype in which a port answered them. What alters no probe is left out.
    """

    def __init__(self, probes: Iterable[Case], defects: Iterable[Defect], settings: Iterable[Defect] = ()) -> None:
        self.probes = list(probes)
        self.clean = [tolerance.expect(case) for case in self.probes]
        self._answers: dict[tuple[tuple[str, ...], int], dict[str, np.ndarray] | None] = {}
        self.defects = [defect for defect in defects if self._alters(defect)]
        self.settings = [setting for setting in settings if self._alters(setting)]

    def answer(self, combination: Combination, index: int) -> dict[str, np.ndarray] | None:
        """The altered truth's float64 outputs of a probe; None where it fails."""
        key = (tuple(one.id for one in combination), index)
        if key not in self._answers:
            self._answers[key] = _attempt(lambda: _answer(combination, self.probes[index].at("float64")))
        return self._answers[key]

    def unstable(self, one: Defect) -> set[int]:
        """The probes to which the truth with this defect gives another answer each time."""
        answers = [[_attempt(functools.partial(_answer, (one,), probe)) for probe in self.probes] for _ in range(2)]
        return {index for index in range(len(self.probes)) if _differ(answers[0][index], answers[1][index])}

    def _alters(self, one: Defect) -> bool:
        for index, probe in enumerate(self.probes):
            predicted = self.answer((one,), index)
            if predicted is None or _rounds((one,), probe):
                return True
            if _differ(predicted, {name: clean.reference for name, clean in self.clean[index].items()}):
                return True
        return False


class Search:
    """The alterations that explain a port's answers, which are in the order of `hypotheses.probes`."""

    def __init__(self, hypotheses: Hypotheses, answers: Answers) -> None:
        self.hypotheses, self.answers = hypotheses, answers
        self.failing = [index for index, clean in enumerate(hypotheses.clean) if not _equal(clean, answers[index])]
        # The cheapest probe that fails comes first, since it rejects the most.
        self._order = sorted(range(len(answers)), key=lambda index: (index not in self.failing, _size(hypotheses.probes[index])))

    def explain(self, known: Combination = ()) -> list[Combination]:
        """The simplest alterations that explain the answers: the known ones, one defect, one setting, the known ones and another.

        Several are those that the probes cannot tell apart; none means that nothing of this kind explains them.
        """
        if all(answer is None for answer in self.answers):  # what fails everywhere says nothing of why
            return []
        if known and self.explains(known):
            return [known]
        for before in ((), known) if known else ((),):
            for tier in (self.hypotheses.defects, self.hypotheses.settings):
                if found := [(*before, one) for one in tier if one not in before and self.explains((*before, one))]:
                    return found
        return []

    def imprecise(self) -> list[Combination]:
        """The defect of rounded operands, where no error is larger than it makes: which bits it changes depends on the order of additions,
        so that equality can not be asked."""
        low = [dataclasses.replace(probe, device="cuda-tf32") for probe in self.hypotheses.probes if probe.dtype == "float32"]
        if len(low) < len(self.answers) or not all(map(_equal, map(tolerance.expect, low), self.answers)):
            return []
        return [(defect,) for defect in self.hypotheses.defects if defect.id == "PRC1"]

    def pairs(self, progress: Callable[[float], None] = lambda share: None) -> list[Combination]:
        """Every two alterations that together explain the answers, those with the fewest settings.

        progress is called with the share that is done.
        """
        settings = self.hypotheses.settings
        pairs = list(_pairs([*self.hypotheses.defects, *settings]))
        found = []
        for count, pair in enumerate(pairs):
            if count % 100 == 0:
                progress(count / len(pairs))
            if self.explains(pair):
                found.append((sum(one in settings for one in pair), pair))
        fewest = min((count for count, _ in found), default=0)
        return [pair for count, pair in found if count == fewest]

    def cover(self, base: Combination = ()) -> Combination:
        """The alterations that, added one by one, each explain the most further answers, until none explains more."""
        explained = len(self.explained(base))
        candidates = [(*base, one) for one in (*self.hypotheses.defects, *self.hypotheses.settings) if one not in base]
        best = max(candidates, key=lambda candidate: len(self.explained(candidate)), default=base)
        return self.cover(best) if len(self.explained(best)) > explained else base

    def remaining(self, base: Combination) -> list[Combination]:
        """The alterations, besides the base, that explain every answer which the base leaves unexplained."""
        left = set(range(len(self.answers))) - set(self.explained(base))
        candidates = [(*base, one) for one in (*self.hypotheses.defects, *self.hypotheses.settings) if one not in base]
        return [candidate for candidate in candidates if left <= set(self.explained(candidate))]

    def explained(self, combination: Combination) -> list[int]:
        """The probes on which the altered truth equals the answer."""
        return [index for index in self._order if self._near(combination, index) and self._equals(combination, index)]

    def explains(self, combination: Combination) -> bool:
        """True where the altered truth equals every answer."""
        if not all(self._near(combination, index) for index in self._order):
            return False
        return all(self._equals(combination, index) for index in self._order)

    def _equals(self, combination: Combination, index: int) -> bool:
        return _equal(expected(combination, self.hypotheses.probes[index]), self.answers[index])

    def nearest(self, count: int = 3) -> list[tuple[Defect, float]]:
        """The hypotheses that leave the least of the error, and the share of it that they leave."""
        before = self._distance(())
        shares = [(one, self._distance((one,)) / before) for one in (*self.hypotheses.defects, *self.hypotheses.settings) if before > 0]
        return sorted((share for share in shares if share[1] < 1), key=lambda share: share[1])[:count]

    def _distance(self, combination: Combination) -> float:
        """The root mean square, over the probes, of the largest error in units of the truth's largest value; infinite without outputs."""
        distances = []
        for index, answer in enumerate(self.answers):
            predicted = self.hypotheses.answer(combination, index)
            if answer is None or predicted is None or not _same_shapes(predicted, answer):
                return np.inf
            for name, value in predicted.items():
                scale = np.abs(self.hypotheses.clean[index][name].reference).max(initial=1e-30)
                distances.append(np.abs(np.asarray(answer[name], dtype=np.float64) - value).max(initial=0.0) / scale)
        return float(np.nan_to_num(np.sqrt(np.mean(np.square(distances))), nan=np.inf))

    def _near(self, combination: Combination, index: int) -> bool:
        """False where the float64 answer of the altered truth alone rules the combination out."""
        probe, answer = self.hypotheses.probes[index], self.answers[index]
        if _rounds(combination, probe):
            return True
        predicted = self.hypotheses.answer(combination, index)
        if predicted is None or answer is None:
            return predicted is answer
        clean = self.hypotheses.clean[index]
        return _same_shapes(predicted, answer) and all(_within(value, answer[name], clean[name]) for name, value in predicted.items())


def _pairs(candidates: Sequence[Defect]) -> Iterator[Combination]:
    """Every two candidates; in both orders where they alter the same function, since one may not call what the other left there."""
    for first, second in itertools.combinations(candidates, 2):
        yield first, second
        if first.replaces.keys() & second.replaces.keys():
            yield second, first


def expected(combination: Combination, case: Case) -> dict[str, tolerance.Expectation] | None:
    """What the altered truth lets a port answer; None where it fails."""
    return _attempt(lambda: tolerance.expect(case, lambda case: _answer(combination, case), _rounds(combination, case)))


def separates(case: Case, first: Combination, second: Combination) -> bool:
    """True where the two altered truths differ on the case by at least ten times what passes."""
    expectations, answers = expected(first, case), _attempt(lambda: _answer(second, case))
    if expectations is None or answers is None:
        return (expectations is None) != (answers is None)
    return any(compare(expectations[name], answers[name]).excess >= 10 for name in expectations)


def _answer(combination: Combination, case: Case) -> dict[str, np.ndarray]:
    with injected(*combination), np.errstate(all="ignore"):
        return truth.answer(case)


def _attempt(function: Callable[[], Any]) -> Any:
    """The function's result; None where an alteration makes the truth fail, as some defects do."""
    try:
        return function()
    except (ValueError, IndexError):
        return None


def _rounds(combination: Combination, case: Case) -> bool:
    return case.dtype != "float64" and any(one.rounding for one in combination)


def _equal(expectations: Mapping[str, tolerance.Expectation] | None, answer: Mapping[str, Any] | None) -> bool:
    if expectations is None or answer is None:
        return expectations is answer
    return expectations.keys() == answer.keys() and all(compare(expectations[name], answer[name]).excess <= 1 for name in expectations)


def _differ(first: Mapping[str, np.ndarray] | None, second: Mapping[str, np.ndarray] | None) -> bool:
    if first is None or second is None:
        return first is not second
    return any(not np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind not in "biu") for name in first)


def _same_shapes(predicted: Mapping[str, np.ndarray], answer: Mapping[str, Any]) -> bool:
    return predicted.keys() == answer.keys() and all(np.shape(answer[name]) == value.shape for name, value in predicted.items())


def _within(predicted: np.ndarray, got: Any, clean: tolerance.Expectation) -> bool:
    if clean.dtype.kind in "biu":
        return np.array_equal(got, predicted)
    got = np.asarray(got, dtype=np.float64)
    predicted = predicted.astype(np.float64, copy=False)
    if not got.size:
        return True
    if not np.array_equal(np.isfinite(got), np.isfinite(predicted)):
        return False
    finite = np.isfinite(got)
    scale = np.abs(clean.reference).max()
    largest = max(float(np.abs(predicted[finite]).max(initial=0.0)), float(scale))
    bound = FAR[clean.dtype.itemsize] * (clean.noise + clean.unit) * largest / max(float(scale), 1e-30)
    return bool(np.abs(got - predicted)[finite].max(initial=0.0) <= bound)


def _size(case: Case) -> int:
    arrays: Iterator[Any] = (value for value in case.inputs.values() if isinstance(value, np.ndarray))
    return sum(array.shape[0] * array.shape[1] if array.ndim > 1 else array.size for array in arrays) * case.config.encoder_layers
