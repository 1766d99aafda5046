"""Constants: finds the number of the reference that has another value in a port, and that value.

A constant of the reference (the attention's scale, epsilon, the base of the positions, a factor of what a component gives) is a parameter
of the altered reference. On the cases that fail it is fitted to the port's answers, and it is a hypothesis where it has one value on all of
them, or where a factor is the same size of each, its root or its reciprocal. Like every alteration it is verified on all cases.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import FRAMEWORKS, Place, places
from ...expectation.tolerance import Expectation
from .. import altered
from ..altered import Outputs
from .constant_table import CONSTANTS, Altered
from .hypotheses import Hypotheses
from .numbers import named_numbers

RESOLVED = 1e-14  # the digits of a number that is next to 0
FITTED = 3  # failing cases that are fitted, the smallest first
STEPS = 14  # of Gauss and Newton at most, each no longer than LONGEST
LONGEST = 3.0
PATIENCE, NEARER = 4, 0.8  # the fit ends if after 4 steps more than 0.8 of the error is left
STEP = 1e-7  # of the numerical derivative
SAME = 1e-5  # relative: numbers that are one, and what is left of an error that is fitted, before the hypothesis is verified
NEAR = 3e-3  # what is left of an error where rounding explains it


@dataclass(frozen=True)
class _Constant:
    """A number of the reference. altered: the functions that it replaces, for a value. start: where the fit begins, the right value.

    right: what the reference has there. scales: it is fitted by its logarithm.
    """

    id: str
    component: str
    title: str
    start: float
    right: str
    altered: Altered
    scales: bool = False

    def at(self, parameter: float) -> float:
        """The value at a parameter of the fit, which begins at 0."""
        return self.start * math.exp(parameter) if self.scales else self.start + parameter

    def alteration(self, value: float) -> Alteration:
        """The reference with that value."""
        return self._called(self._written(value), value)

    def of_sizes(self, words: str, place: Place | None) -> Alteration:
        """The reference with the number that has this name in every case; as it is if a case has none."""

        def of_case(case: Case) -> Alteration:
            return self.alteration(named_numbers(case).get(words, self.start))

        return replace(self._called(words, self.start), place=place, of_case=of_case)

    def _called(self, number: str, value: float) -> Alteration:
        fixes = dict.fromkeys(FRAMEWORKS, f"use {self.right}")
        return Alteration(
            id=f"{self.id}={number}", title=f"{self.title} {number}", component=self.component, fix=fixes, replaces=self.altered(value)
        )

    def _written(self, value: float) -> str:
        """The value with as many digits as tell it from the reference's: 0.044714998 is 0.044715 in float32."""
        texts = [(f"{value:.{digits}g}", f"{self.start:.{digits}g}") for digits in (6, 8, 10, 12, 17)]
        return next((text for text, right in texts if text != right), texts[0][0])


_CONSTANTS = tuple(_Constant(*row) for row in CONSTANTS)


def constants(
    hypotheses: Hypotheses, failing: Sequence[int], answers: Sequence[Outputs], base: altered.Combination = ()
) -> Iterator[list[Alteration]]:
    """The constants, each at all its places and at one, with the value that the port's answers have: in few digits, and in all.

    failing: the probes that are fitted, the smallest first. Those on which a constant says nothing are left out. base: what the reference
    is altered by besides.
    """
    for constant in _CONSTANTS:
        sites = hypotheses.sites_of(constant.alteration(constant.start))
        if not any(sites):
            continue
        for place in (None, *places(sites)):
            meant = [index for index in failing if any(place is None or place.holds(site) for site in sites[index])][:FITTED]
            fits: list[_Fitted] = []
            if len(meant) == 1 and _numbers(answers[meant[0]]) == 1:
                continue  # one number is given by some value of any constant
            for index in meant:
                fitted = _fit(constant, place, hypotheses.probes[index], answers[index], base, _rounding(hypotheses.clean[index]))
                if fitted is None or (fits and constant.start != 1 and not fitted.same(fits[0])):
                    break
                fits.append(fitted)
            if not fits or len(fits) < len(meant):
                continue
            one, best = all(fitted.same(fits[0]) for fitted in fits), min(fits, key=lambda fitted: fitted.spread)
            values = [fitted.value for fitted in fits]
            sizes = _sizes([hypotheses.probes[index] for index in meant], values) if constant.start == 1 else []
            if sizes and not (one and _same(float(f"{values[0]:.3g}"), values[0])):
                yield [constant.of_sizes(words, place) for words in sizes]
            elif one:
                yield [replace(constant.alteration(value), place=place) for value in dict.fromkeys((best.short, best.value))]


class _Fitted(NamedTuple):
    """A value that gives an answer. spread: how far from it other values give the answer as well, since its digits are rounded."""

    value: float
    spread: float

    def same(self, other: "_Fitted") -> bool:
        return _same(self.value, other.value) or abs(self.value - other.value) <= self.spread + other.spread

    @property
    def short(self) -> float:
        """The number of few digits that may be meant."""
        numbers = (float(f"{self.value:.{digits}g}") for digits in (2, 3, 4, 6))
        return next((number for number in numbers if abs(number - self.value) <= max(SAME * abs(self.value), self.spread)), self.value)


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= max(SAME * abs(other), RESOLVED)


def _sizes(probes: Sequence[Case], values: Sequence[float]) -> list[str]:
    """The sizes of the cases, their roots and reciprocals, that are these values, by name."""
    numbers = [named_numbers(probe) for probe in probes]
    return [
        words for words in numbers[0] if all(_same(own.get(words, math.nan), value) for own, value in zip(numbers, values, strict=True))
    ]


def _numbers(answer: Outputs) -> int:
    """How many floating numbers an answer has."""
    return sum(np.size(value) for value in answer.values() if np.asarray(value).dtype.kind == "f")


def _fit(
    constant: _Constant, place: Place | None, probe: Case, answer: Outputs, base: altered.Combination, rounding: float
) -> _Fitted | None:  # fmt: skip
    """The value with which the altered reference gives the answer, by Gauss and Newton; None where there is none.

    rounding: the norm of the errors that pass.
    """
    case = probe.at("float64")

    def error(parameter: float) -> np.ndarray:
        predicted = altered.answer((*base, replace(constant.alteration(constant.at(parameter)), place=place)), case)
        return _difference(predicted, answer) if predicted else np.empty(0)

    parameter, at = 0.0, error(0.0)
    before = float(np.linalg.norm(at))
    for count in range(STEPS):
        beside = error(parameter + STEP)
        if not before or beside.shape != at.shape or not (slope := (beside - at) / STEP).any():
            return None
        step = float(np.clip(-float(slope @ at) / float(slope @ slope), -LONGEST, LONGEST))
        parameter, at = parameter + step, error(parameter + step)
        if at.shape != slope.shape or not math.isfinite(parameter) or (count == PATIENCE and np.linalg.norm(at) > NEARER * before):
            return None
        if abs(step) <= 1e-14 * max(abs(parameter), 1.0):
            break
    if not np.linalg.norm(at) < max(SAME * before, min(rounding, NEAR * before)):
        return None
    value, spread = constant.at(parameter), float(np.linalg.norm(at) / np.linalg.norm(slope))
    return _Fitted(value, spread * (value if constant.scales else 1))


def _rounding(clean: Mapping[str, Expectation]) -> float:
    """The norm of the errors that pass, of all outputs."""
    return math.hypot(*(one.bound_rmse * math.sqrt(one.reference.size) for one in clean.values() if one.dtype.kind == "f"))


def _difference(predicted: Outputs, answer: Outputs) -> np.ndarray:
    """The errors of the finite elements of all outputs, one after the other; none where they have no counterpart."""
    errors = []
    for name, value in predicted.items():
        got = np.asarray(answer.get(name))
        if value.dtype.kind != "f" or got.shape != value.shape:
            return np.empty(0)
        both = np.isfinite(value) & np.isfinite(got)
        errors.append((value - got.astype(np.float64))[both].ravel())
    return np.concatenate(errors) if errors else np.empty(0)
