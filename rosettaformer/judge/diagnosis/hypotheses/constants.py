"""Finds a constant of the reference that has another value in a port, and that value.

A constant (the attention scale, epsilon, the base of the positions, a factor of an output) is a
parameter of the altered reference. It is fitted to the port's outputs on failing cases. It becomes
a hypothesis if it has one value on all of them, or if a factor equals the same size in every case,
its root or its reciprocal. Like every alteration it is verified on all cases.
"""

import itertools
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

RESOLVED = 1e-14  # resolution of numbers close to 0
FITTED = 3  # failing cases to fit, smallest first
STEPS = 14  # Gauss-Newton steps at most, each at most LONGEST
LONGEST = 3.0
PATIENCE, NEARER = 4, 0.8  # the fit stops if more than 0.8 of the error is left after 4 steps
STEP = 1e-7  # step of the numerical derivative
SAME = 1e-5  # relative difference of equal numbers, and share of the error that a fit may leave
NEAR = 3e-3  # share of the error that a fit may leave if rounding explains it


@dataclass(frozen=True)
class _Constant:
    """A number of the reference.

    altered: from a value to the functions that it replaces. start: the correct value, where the fit
    starts. right: the correct value in words. scales: whether its logarithm is fitted.
    """

    id: str
    component: str
    title: str
    start: float
    right: str
    altered: Altered
    scales: bool = False

    def at(self, parameter: float) -> float:
        """The value for a parameter of the fit, which starts at 0."""
        return self.start * math.exp(parameter) if self.scales else self.start + parameter

    def alteration(self, value: float) -> Alteration:
        """The reference with that value."""
        return self._called(self._written(value), value)

    def of_sizes(self, words: str, place: Place | None) -> Alteration:
        """The reference with the case's number of this name, or unchanged if it has none."""

        def of_case(case: Case) -> Alteration:
            return self.alteration(named_numbers(case).get(words, self.start))

        return replace(self._called(words, self.start), place=place, of_case=of_case)

    def _called(self, number: str, value: float) -> Alteration:
        fixes = dict.fromkeys(FRAMEWORKS, f"use {self.right}")
        return Alteration(
            id=f"{self.id}={number}", title=f"{self.title} {number}", component=self.component, fix=fixes, replaces=self.altered(value)
        )

    def _written(self, value: float) -> str:
        """The value with enough digits to differ from the reference's: 0.044714998 is 0.044715."""
        texts = [(f"{value:.{digits}g}", f"{self.start:.{digits}g}") for digits in (6, 8, 10, 12, 17)]
        return next((text for text, right in texts if text != right), texts[0][0])


_CONSTANTS = tuple(_Constant(*row) for row in CONSTANTS)


def constants(
    hypotheses: Hypotheses, failing: Sequence[int], answers: Sequence[Outputs], base: altered.Combination = ()
) -> Iterator[list[Alteration]]:
    """The constants with the values fitted to the port, everywhere and at one place, rounded to few
    digits and in full.

    failing: the probes to fit, smallest first; a constant skips probes without it. base: further
    alterations of the reference.
    """
    for constant in _CONSTANTS:
        whole = constant.alteration(constant.start)
        called = next((run for index in failing if (run := hypotheses.sites_of(whole, index))), [])
        for place in (None, *places([called])) if called else ():
            held = (index for index in failing if any(place is None or place.holds(site) for site in hypotheses.sites_of(whole, index)))
            meant = [*itertools.islice(held, FITTED)]
            fits: list[_Fitted] = []
            if len(meant) == 1 and _numbers(answers[meant[0]]) == 1:
                continue  # any constant can fit a single number
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
    """A fitted value. spread: how far other values may be that fit equally well."""

    value: float
    spread: float

    def same(self, other: "_Fitted") -> bool:
        return _same(self.value, other.value) or abs(self.value - other.value) <= self.spread + other.spread

    @property
    def short(self) -> float:
        """The number with the fewest digits that fits."""
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
    """The value with which the altered reference gives the answer, by Gauss and Newton; None where
    there is none.

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
    """The norm of the errors that pass, over all outputs."""
    return math.hypot(*(one.bound_rmse * math.sqrt(one.reference.size) for one in clean.values() if one.dtype.kind == "f"))


def _difference(predicted: Outputs, answer: Outputs) -> np.ndarray:
    """The errors of all finite elements, concatenated; empty if shapes or dtypes differ."""
    errors = []
    for name, value in predicted.items():
        got = np.asarray(answer.get(name))
        if value.dtype.kind != "f" or got.shape != value.shape:
            return np.empty(0)
        both = np.isfinite(value) & np.isfinite(got)
        errors.append((value - got.astype(np.float64))[both].ravel())
    return np.concatenate(errors) if errors else np.empty(0)
