"""A port's outputs as evidence for or against alterations of the reference.

An alteration explains a port if the altered reference matches the port's outputs on every probe,
passing or failing, within a tolerance derived from the altered reference itself. Some failing
probes must support it: their tolerance is narrower than the port's error. A match within a wider
tolerance is inconclusive.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...case import Case
from ...catalogue import Alteration
from ...compare import compare
from ...expectation import tolerance
from ...expectation.components import SEARCHES
from ...expectation.expectation_store import Store
from ...expectation.near_ties import followed
from ...status import LEFT, Kind
from .. import altered
from ..altered import Combination, Outputs
from ..hypotheses import Hypotheses
from ..hypotheses.readings import side_of
from ..symptoms.conditions import condition

# Errors of plain arithmetic, by the dtype's bytes, beyond which float64 rules out an alteration,
# which may have a larger error than the reference.
FAR = {8: 1e5, 4: 1000.0, 2: 30.0}
ALL = 0.995  # share of the error that prints as 100 %
LARGEST = 1e150  # error whose square is finite
SIMILAR = 20  # times the size of the smallest failing probe
LEAKING = 1e-6  # change of a float64 output that shows that it depends on padding: far above rounding, far below one token
EQUAL, SUPPORT = "equal", "support"

Answers = Sequence[Outputs]  # a port's outputs by probe; cases that raise an error are not probes


class Evidence:
    """A port's outputs for the probes. failed: the number of further cases without an output.

    screen: the outputs for much smaller cases, which rule out most alterations; None without them.
    """

    screen: "Evidence | None" = None

    def __init__(self, hypotheses: Hypotheses, answers: Answers, failed: int = 0) -> None:
        self.hypotheses, self.answers, self.failed = hypotheses, answers, failed
        self.probes = hypotheses.probes
        self.tried: set[Alteration] = set()  # alone
        self._support, self.near = functools.cache(self._supporting), functools.cache(self._may_equal)
        self.leaks = functools.cache(self._leaking)
        self._settled = functools.cache(self._settle)
        self.clean = [followed(*each) for each in zip(self.probes, hypotheses.clean, answers, strict=True)]
        self.failing = [index for index, clean in enumerate(self.clean) if not altered.equal(clean, answers[index])]
        # The cheapest failing probe comes first, since it rejects the most, after much cheaper ones.
        sizes = [size_of(probe) for probe in self.probes]
        least = min((sizes[index] for index in self.failing), default=0)
        cheap = {index for index, size in enumerate(sizes) if SIMILAR * size < least}
        self._order = sorted(range(len(answers)), key=lambda index: (index not in cheap, index not in self.failing, sizes[index]))

    def cheapest(self) -> list[int]:
        """The failing probes, smallest first."""
        return [index for index in self._order if index in self.failing]

    @functools.cached_property
    def small(self) -> list[int]:
        """The failing probes whose cost is similar to that of the cheapest one."""
        sizes = {index: size_of(self.probes[index]) for index in self.failing}
        return [index for index in self.cheapest() if sizes[index] <= SIMILAR * min(sizes.values())]

    def right(self) -> list[int]:
        """The passing probes, smallest first."""
        return [index for index in self._order if index not in self.failing]

    @functools.cached_property
    def condition(self) -> str:
        """A property of all failing cases that no other case has; empty if there is none."""
        return condition([self.probes[index] for index in self.failing], [self.probes[index] for index in self.right()])

    @property
    def one_number(self) -> bool:
        """Whether only a single number fails, which some alteration gives by chance."""
        return sum(np.size(value) for index in self.failing for value in self.answers[index].values()) == 1

    def explained(self, combination: Combination, among: Sequence[int] | None = None) -> list[int]:
        """The explained probes: those that match and, if failing, support. among: only these."""
        near = [index for index in (self._order if among is None else among) if self.near(combination, index)]
        support = {index: self._support(combination, index) for index in near}
        return [index for index, found in support.items() if found == SUPPORT or (found == EQUAL and index not in self.failing)]

    def left(self, base: Combination) -> list[int]:
        """The unexplained probes, failing ones first."""
        explained = self.explained(base)
        return [index for index in self._order if index not in explained]

    def silent(self, combination: Combination) -> list[int]:
        """The inconclusive probes: failing ones that match within too wide a tolerance."""
        return [index for index in self.failing if self._support(combination, index) == EQUAL]

    def equals(self, combination: Combination) -> bool:
        """Whether the altered reference matches every output."""
        self.hypotheses.deadline.check()
        if self.screen and not self.screen.equals(combination):
            return False
        return all(self.near(combination, index) for index in self._order) and all(
            self._support(combination, index) for index in self._order
        )

    def explains(self, combination: Combination, known: Combination = ()) -> bool:
        """Whether every output matches, and failing ones support each unknown alteration."""
        if not self.equals(combination):
            return False
        supporting = [index for index in self._order if self._support(combination, index) == SUPPORT]
        others = (tuple(other for other in combination if other is not one) for one in combination if one not in known)
        return bool(supporting) and not any(all(self._support(other, index) for index in supporting) for other in others if other)

    def _supporting(self, combination: Combination, index: int) -> str:
        """Whether an output supports the altered reference, only matches it, or differs (empty)."""
        settle = self._settled(combination, index)
        answer = settle(self.answers[index])
        expectations = altered.expected(combination, self.probes[index], answer, settle)
        if expectations is None or not altered.equal(expectations, answer):
            return EQUAL if self.leaks(combination, index) else ""
        return SUPPORT if altered.supports(self.clean[index], expectations, answer) else EQUAL

    def _leaking(self, combination: Combination, index: int) -> bool:
        """Whether the altered reference's outputs depend on the ids under padding.

        Such a probe does not refute the alteration: ports differ in what they compute at padding.
        This holds only if a probe without padding fails, which has to support it.
        """
        case, predicted = self.probes[index], self.hypotheses.answer(combination, index)
        if predicted is None or not _padded(case) or all(_padded(self.probes[other]) for other in self.failing):
            return False
        side = side_of(case)
        others = np.where(np.asarray(case.real_bt), case.inputs[side], (case.inputs[side] + 1) % getattr(case.config, f"{side}_vocabulary"))
        wide = case.at("float64")
        again = altered.answer(combination, dataclasses.replace(wide, inputs={**wide.inputs, side: others}))
        return again is not None and any(
            not np.allclose(value, again[name], rtol=LEAKING, atol=LEAKING, equal_nan=True) for name, value in predicted.items()
        )

    def _settle(self, combination: Combination, index: int) -> altered.Settle:
        return altered.settled(combination, self.probes[index], self.clean[index])

    def complaint(self) -> str:
        """Describes the first failing output."""
        index = self.failing[0]
        return _complaint(self.probes[index], self.clean[index], self.answers[index])

    def nearest(self, count: int = 3, most: float = ALL) -> list[tuple[Alteration, float]]:
        """The known bugs and settings that leave at most this share of the error, with the share,
        best first.
        """
        before = self._distance(())
        if self.one_number or not 0 < before < np.inf:
            return []
        shares = [(one, self._distance((one,), most * before) / before) for one in self.hypotheses.catalogued]
        return sorted((share for share in shares if share[1] <= most), key=lambda share: share[1])[:count]

    def _distance(self, combination: Combination, most: float = np.inf) -> float:
        """The root mean square of the small failing probes' largest relative errors; infinite
        without outputs, or above `most`.
        """
        total, count = 0.0, sum(len(self.answers[index]) for index in self.small)
        for index in self.small:
            answer, predicted = self.answers[index], self.hypotheses.answer(combination, index)
            if predicted is None or not _same_shapes(predicted, answer):
                return np.inf
            for name, value in predicted.items():
                reference, got = self.hypotheses.clean[index][name].reference, np.asarray(answer[name], dtype=np.float64)
                scale = np.abs(reference[np.isfinite(reference)]).max(initial=1e-30)
                same = got == value  # infinities among them
                error = float(np.abs(np.where(same, 0.0, got) - np.where(same, 0.0, value)).max(initial=0.0) / scale)
                total += min(error, LARGEST) ** 2
            if not total <= count * most**2:
                return np.inf
        return float(np.sqrt(total / count))

    def _may_equal(self, combination: Combination, index: int) -> bool:
        """A cheap check in float64: False if the altered reference clearly does not match."""
        probe, answer = self.probes[index], self.answers[index]
        # In half precision a search may have many near ties, at which float64 chooses differently.
        if altered.rounds(combination, probe) or (probe.component in SEARCHES and probe.dtype not in ("float64", "float32")):
            return True
        predicted = self.hypotheses.answer(combination, index)
        if predicted is None:
            return False
        settle, clean = self._settled(combination, index), self.hypotheses.clean[index]
        predicted, answer = settle(predicted), settle(answer)
        same = _same_shapes(predicted, answer) and all(_within(value, answer[name], clean[name]) for name, value in predicted.items())
        return same or self.leaks(combination, index)


def _padded(case: Case) -> bool:
    return bool(case.folder and side_of(case)) and case.real_bt is not None and not case.real_bt.all()


def complaint(case: Case, kind: str, answer: Any, store: Store) -> str:
    """Describes what is wrong with a reply; empty if nothing is. store: keeps the expectation."""
    if kind in LEFT:
        return ""
    if kind != Kind.OUTPUTS:
        return f"{case.id}: {answer}".partition("\n")[0]
    clean = followed(case, store.expect(case), answer)
    return "" if altered.equal(clean, answer) else _complaint(case, clean, answer)


def narrowed(answers: Answers, clean: Sequence[tolerance.Expectations]) -> tuple[list[Outputs], dict[int, str]]:
    """The outputs cast to the required dtypes, and by index the dtypes that were too wide."""
    found: list[Outputs] = []
    wide: dict[int, str] = {}
    for index, (answer, expectations) in enumerate(zip(answers, clean, strict=True)):
        wider = {name for name, one in expectations.items() if _wider(answer.get(name), one.dtype)}
        if wider:
            wide[index] = str(answer[min(wider)].dtype)
        found.append({name: value.astype(expectations[name].dtype) if name in wider else value for name, value in answer.items()})
    return found, wide


def _wider(got: Any, dtype: np.dtype) -> bool:
    floats = isinstance(got, np.ndarray) and got.dtype.kind == "f" and dtype.kind not in "biu"
    return floats and got.dtype.itemsize > dtype.itemsize


def _complaint(case: Case, clean: tolerance.Expectations, answer: Outputs) -> str:
    problems = [compare(clean[name], answer.get(name)).message for name in clean]
    return f"{case.id}: {next(filter(None, problems), 'other outputs')}"


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


def size_of(case: Case) -> int:
    """The number of elements of a case's inputs, times its layers: a measure of what it costs."""
    arrays: Iterator[Any] = (value for value in case.inputs.values() if isinstance(value, np.ndarray))
    layers = case.config.encoder_layers + case.config.decoder_layers
    return sum(array.shape[0] * array.shape[1] if array.ndim > 1 else array.size for array in arrays) * layers


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of numbers that are finite in both."""
    if first.shape != second.shape:
        return np.inf
    finite = np.isfinite(first) & np.isfinite(second)
    return float(np.abs(first[finite].astype(np.float64) - second[finite].astype(np.float64)).max(initial=0.0))
