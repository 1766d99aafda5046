"""One output of one case, the reference's and the port's, and predictions about it.

A prediction becomes a symptom if every case confirms it.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...case import Case
from ...compare import compare
from ...expectation.tolerance import Expectation
from ...expectation.trace import TracedCall, record
from ..hypotheses.numbers import named_numbers
from .run_values import Value, values

ULPS = {8: 4096, 4: 32, 2: 2}  # ulps of the largest value within which values count as equal, by the dtype's bytes
APART = 10  # multiple of that distance from which an element is wrong


class Run:
    """The reference's run on a case, recorded once for all outputs."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._wide = case.at("float64")

    @functools.cached_property
    def calls(self) -> Mapping[str, TracedCall]:
        """Every component call, by path."""
        return record(self._wide)

    @functools.cached_property
    def values(self) -> list[Value]:
        """The inputs, parameters and intermediate values of the run, with their words."""
        return values(self._wide, self.calls)

    @functools.cached_property
    def named(self) -> Mapping[str, np.ndarray]:
        """The values by their words."""
        return {value.words: value.array for value in self.values}

    @functools.cached_property
    def numbers(self) -> Mapping[str, float]:
        """The numbers that a factor may equal, by name."""
        return named_numbers(self.case)


@dataclass(frozen=True, eq=False)
class Answered:
    """One output of one case. answer: the port's. where: the elements to consider; all if None."""

    run: Run
    name: str
    expectation: Expectation
    answer: np.ndarray
    where: np.ndarray | None = field(default=None)

    @property
    def case(self) -> Case:
        """The case."""
        return self.run.case

    @functools.cached_property
    def reference(self) -> np.ndarray:
        """The reference's output in float64."""
        return self.expectation.reference.astype(np.float64, copy=False)

    @functools.cached_property
    def got(self) -> np.ndarray:
        """The port's output in float64."""
        return self.answer.astype(np.float64)

    @functools.cached_property
    def fails(self) -> bool:
        """Whether the output fails the comparison."""
        return compare(self.expectation, self.answer).excess > 1

    @functools.cached_property
    def shaped(self) -> bool:
        """Whether the output has the reference's shape."""
        return self.got.shape == self.reference.shape

    @functools.cached_property
    def wrong(self) -> np.ndarray:
        """The considered elements that clearly differ from the reference."""
        return self._further(APART)

    @functools.cached_property
    def off(self) -> np.ndarray:
        """The considered elements that differ from the reference."""
        return self._further(1)

    def _further(self, times: int) -> np.ndarray:
        if not self.shaped:
            return np.ones(self.got.shape, bool)
        further = ~self.close(self.got, self.reference, times * self.allowed(self.reference))
        return further if self.where is None else further & self.where

    def allowed(self, predicted: np.ndarray) -> float:
        """The largest error that matches a prediction, scaled up for larger numbers."""
        if self.expectation.dtype.kind in "biu":
            return 0.0
        own, other = (np.abs(value[np.isfinite(value)]).max(initial=0.0) for value in (self.reference, predicted))
        bound = self.expectation.bound if np.isfinite(self.expectation.bound) else 0.0
        rounding = ULPS[self.expectation.dtype.itemsize] * self.epsilon * max(own, other)
        return max(bound * max(1.0, other / own if own else 1.0), rounding)

    @property
    def epsilon(self) -> float:
        """The relative spacing of numbers of the dtype."""
        return {8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-8}[self.expectation.dtype.itemsize]

    @staticmethod
    def close(first: np.ndarray, second: np.ndarray, allowed: float) -> np.ndarray:
        """Compares element by element; NaN equals NaN."""
        with np.errstate(invalid="ignore"):
            return (np.abs(first - second) <= allowed) | (first == second) | (np.isnan(first) & np.isnan(second))

    def near(self, predicted: np.ndarray, where: np.ndarray | None = None) -> bool:
        """Whether the considered elements match a prediction."""
        if predicted.shape != self.got.shape:
            return False
        near = self.close(self.got, predicted, self.allowed(predicted))
        for mask in (self.where, where):
            near = near if mask is None else near | ~mask
        return bool(near.all())

    def select(self, array: np.ndarray) -> np.ndarray:
        """The considered elements of an array that broadcasts to the output."""
        array = np.broadcast_to(array, self.got.shape)
        return array.reshape(-1) if self.where is None else array[self.where]

    def factor(self, target: np.ndarray, value: np.ndarray) -> float | None:
        """The factor from value to target at the considered elements; None if there is none."""
        target, value = self.select(target), self.select(value)
        finite = np.isfinite(value)
        if not finite.any() or not np.array_equal(finite, np.isfinite(target)):
            return None
        target, value = target[finite], value[finite]
        largest = int(np.abs(value).argmax())
        if not value[largest] or np.ptp(value) <= 1e-9 * abs(value[largest]):
            return None  # a constant can be scaled to any other
        factor = float(target[largest] / value[largest])
        allowed = self.allowed(np.append(self.reference.reshape(-1), target))
        return factor if np.abs(target - factor * value).max() <= allowed and abs(factor * value[largest]) > APART * allowed else None


STRONG = 80  # specificity from which a symptom describes the complete output
Predicted = np.ndarray | tuple[np.ndarray, np.ndarray] | None  # the output, or the output and a mask of the predicted elements


@dataclass(frozen=True)
class Symptom:
    """A verified sentence that describes an output in terms of the reference and the inputs.

    kind: the family. specificity: how much the sentence says. ignored: the input that it calls
    ignored; empty if none.
    """

    kind: str
    sentence: str
    specificity: int
    ignored: str = ""

    @property
    def complete(self) -> bool:
        """Whether it describes the complete output."""
        return self.specificity >= STRONG


@dataclass(frozen=True)
class Prediction:
    """An unverified symptom, which predicts the port's output for a case.

    sentence: its identity; `{output}` stands for `your output`. predict: returns None if it does
    not apply to the case. ignored: as in `Symptom`.
    """

    kind: str
    sentence: str
    specificity: int
    predict: Callable[[Answered], Predicted]
    ignored: str = ""


def of_reference(kind: str, words: str, specificity: int, function: Callable[[np.ndarray], np.ndarray]) -> Prediction:
    """Predicts a function of the reference's output. words: with {} for the reference."""
    sentence = f"{{output}} is {words.format('the reference')}"
    return Prediction(kind, sentence, specificity, lambda answered: function(answered.reference))
