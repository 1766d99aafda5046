"""Which alterations of the reference give a port's outputs.

An alteration is a defect of the catalogue or a setting. It explains a port where the altered reference equals the port's answers within the
tolerance, derived from the altered reference itself, on every probe: those that the port fails and those that it passes. Of those that it
fails some must support it: there the tolerance is narrower than the port's error. What lies within a wider one is equal, and says nothing.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..case import Case
from ..compare import compare
from ..defects import Defect
from ..reference import tolerance
from ..reference.components import SEARCHES
from ..reference.near_ties import followed
from . import altered
from .altered import Combination, Outputs
from .hypotheses import Hypotheses

__all__ = ["Answers", "Search", "ordered_pairs"]

# A first look at the float64 answer alone rejects what lies further away than this many times the error of plain arithmetic, by the
# dtype's bytes: an alteration may have a larger error of its own.
FAR = {8: 1e5, 4: 1000.0, 2: 30.0}
ALL = 0.995  # of the error: what is left of it and reads 100 %
EQUAL, SUPPORT = "equal", "support"

Answers = Sequence[Outputs]  # a port's outputs, probe by probe; what ended with an error is no probe


class Search:
    """The alterations that explain a port's answers, which are in the order of `hypotheses.probes`.

    failed: the number of further cases, to which the port has no answer.
    """

    def __init__(self, hypotheses: Hypotheses, answers: Answers, failed: int = 0) -> None:
        self.hypotheses, self.answers, self.failed = hypotheses, answers, failed
        self._relation = functools.cache(self._related)
        self._clean = [followed(*each) for each in zip(hypotheses.probes, hypotheses.clean, answers, strict=True)]
        self.failing = [index for index, clean in enumerate(self._clean) if not altered.equal(clean, answers[index])]
        # The cheapest probe that fails comes first, since it rejects the most.
        self._order = sorted(range(len(answers)), key=lambda index: (index not in self.failing, _size(hypotheses.probes[index])))

    def explain(self, known: Combination = ()) -> list[Combination]:
        """The simplest alterations that explain the answers: the known ones, one defect, one setting, the known ones and another.

        Several are those that the probes cannot tell apart; none means that nothing of this kind explains them.
        """
        if known and self.explains(known, known):
            return [known]
        for before in ((), known) if known else ((),):
            for tier in (self.hypotheses.defects, self.hypotheses.settings):
                if found := [(*before, one) for one in tier if one not in before and self.explains((*before, one), before)]:
                    return found
        return []

    def imprecise(self) -> list[Combination]:
        """The defects that do nothing but lose digits, where no error is larger than they make: which digits depends on the summation
        order, so that equality can not be asked."""
        low = [dataclasses.replace(probe, device="cuda-tf32") for probe in self.hypotheses.probes if probe.dtype == "float32"]
        if len(low) == len(self.answers) and all(map(altered.equal, map(tolerance.expect, low), self.answers)):
            return [(defect,) for defect in self.hypotheses.defects if defect.id == "PRC1"]
        return [(defect,) for defect in self.hypotheses.defects if self._loses_digits((defect,))]

    def _loses_digits(self, combination: Combination) -> bool:
        """True where the altered reference equals every answer, no answer supports it, and by itself it fails the very probes that fail."""
        if not self.equals(combination) or self.silent(combination) != self.failing:
            return False
        answers = [altered.answer(combination, probe) for probe in self.hypotheses.probes]
        return self.failing == [index for index, answer in enumerate(answers) if not altered.equal(self._clean[index], answer)]

    def pairs(self, progress: Callable[[float], None] = lambda share: None) -> list[Combination]:
        """Every two alterations that together explain the answers, those with the fewest settings.

        progress is called with the share that is done.
        """
        settings = self.hypotheses.settings
        pairs = list(ordered_pairs([*self.hypotheses.defects, *settings]))
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
        candidates = [candidate for candidate in self._further(base) if self.explained(candidate, self._left(base))]
        best = max(candidates, key=lambda candidate: len(self.explained(candidate)), default=base)
        return self.cover(best) if len(self.explained(best)) > len(self.explained(base)) else base

    def remaining(self, base: Combination) -> list[Combination]:
        """The alterations, besides the base, that explain every answer which the base leaves unexplained."""
        left = self._left(base)
        return [candidate for candidate in self._further(base) if len(self.explained(candidate, left)) == len(left)]

    def _further(self, base: Combination) -> list[Combination]:
        return [(*base, one) for one in (*self.hypotheses.defects, *self.hypotheses.settings) if one not in base]

    def _left(self, base: Combination) -> list[int]:
        explained = self.explained(base)
        return [index for index in self._order if index not in explained]

    def explained(self, combination: Combination, among: Sequence[int] | None = None) -> list[int]:
        """The probes, or those among these, on which the altered reference equals the answer; of those that fail, the ones that support
        it."""
        near = [index for index in (self._order if among is None else among) if self._near(combination, index)]
        relations = {index: self._relation(combination, index) for index in near}
        return [index for index, relation in relations.items() if relation == SUPPORT or (relation == EQUAL and index not in self.failing)]

    def silent(self, combination: Combination) -> list[int]:
        """The probes that fail, and are equal to the altered reference in a tolerance so wide that they do not support it."""
        return [index for index in self.failing if self._relation(combination, index) == EQUAL]

    def equals(self, combination: Combination) -> bool:
        """True where the altered reference equals every answer."""
        return all(self._near(combination, index) for index in self._order) and all(
            self._relation(combination, index) for index in self._order
        )

    def explains(self, combination: Combination, known: Combination = ()) -> bool:
        """True where the altered reference equals every answer, some that fail support it, and each alteration that is not known is needed
        for these."""
        if not self.equals(combination):
            return False
        supporting = [index for index in self._order if self._relation(combination, index) == SUPPORT]
        others = (tuple(other for other in combination if other is not one) for one in combination if one not in known)
        return bool(supporting) and not any(all(self._relation(other, index) for index in supporting) for other in others if other)

    def _related(self, combination: Combination, index: int) -> str:
        """What the answer to a probe is to the altered reference: equal, where it fails perhaps a support, or nothing."""
        answer = self.answers[index]
        expectations = altered.expected(combination, self.hypotheses.probes[index], answer)
        if expectations is None or not altered.equal(expectations, answer):
            return ""
        return SUPPORT if altered.supports(self._clean[index], expectations, answer) else EQUAL

    def complaint(self) -> str:
        """What is wrong with the first answer that fails, in words."""
        index = self.failing[0]
        clean, answer = self._clean[index], self.answers[index]
        problems = [compare(clean[name], answer.get(name)).message for name in clean]
        return f"{self.hypotheses.probes[index].id}: {next(filter(None, problems), 'other outputs')}"

    def nearest(self, count: int = 3) -> list[tuple[Defect, float]]:
        """The hypotheses that leave the least of the error, and the share of it that they leave: less than all, in whole percents."""
        before = self._distance(())
        if not 0 < before < np.inf:
            return []
        shares = [(one, self._distance((one,)) / before) for one in (*self.hypotheses.defects, *self.hypotheses.settings)]
        return sorted((share for share in shares if share[1] < ALL), key=lambda share: share[1])[:count]

    def _distance(self, combination: Combination) -> float:
        """The root mean square, over the probes, of the largest error in units of the reference's largest value; infinite without
        outputs."""
        distances = []
        for index, answer in enumerate(self.answers):
            predicted = self.hypotheses.answer(combination, index)
            if predicted is None or not _same_shapes(predicted, answer):
                return np.inf
            for name, value in predicted.items():
                reference, got = self.hypotheses.clean[index][name].reference, np.asarray(answer[name], dtype=np.float64)
                scale = np.abs(reference[np.isfinite(reference)]).max(initial=1e-30)
                same = got == value  # infinities among them
                distances.append(np.abs(np.where(same, 0.0, got) - np.where(same, 0.0, value)).max(initial=0.0) / scale)
        return float(np.nan_to_num(np.sqrt(np.mean(np.square(distances))), nan=np.inf))

    def _near(self, combination: Combination, index: int) -> bool:
        """False where the float64 answer of the altered reference alone rules the combination out."""
        probe, answer = self.hypotheses.probes[index], self.answers[index]
        # A half-precision dtype's search may lie near many ties, at which float64 chooses otherwise.
        if altered.rounds(combination, probe) or (probe.component in SEARCHES and probe.dtype not in ("float64", "float32")):
            return True
        predicted = self.hypotheses.answer(combination, index)
        if predicted is None:
            return False
        clean = self.hypotheses.clean[index]
        return _same_shapes(predicted, answer) and all(_within(value, answer[name], clean[name]) for name, value in predicted.items())


def ordered_pairs(candidates: Sequence[Defect]) -> Iterator[Combination]:
    """Every two candidates; in both orders where they alter the same function, since one may not call what the other left there."""
    for first, second in itertools.combinations(candidates, 2):
        yield first, second
        if first.replaces.keys() & second.replaces.keys():
            yield second, first


def _same_shapes(predicted: Outputs, answer: Outputs) -> bool:
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
    scale = np.abs(clean.reference[np.isfinite(clean.reference)]).max(initial=0.0)
    largest = max(float(np.abs(predicted[finite]).max(initial=0.0)), float(scale))
    relative = (clean.noise + clean.unit) / float(scale) if scale else 0.0
    bound = FAR[clean.dtype.itemsize] * max(relative * largest, tolerance.ulp(largest, clean.dtype))
    return bool(np.abs(got[finite] - predicted[finite]).max(initial=0.0) <= bound)


def _size(case: Case) -> int:
    arrays: Iterator[Any] = (value for value in case.inputs.values() if isinstance(value, np.ndarray))
    layers = case.config.encoder_layers + case.config.decoder_layers
    return sum(array.shape[0] * array.shape[1] if array.ndim > 1 else array.size for array in arrays) * layers
