"""The altered reference: its outputs, and the tolerance for a port with the same alteration."""

import contextlib
import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..case import Case
from ..catalogue import Alteration, injected
from ..compare import compare
from ..expectation import components, near_ties, tolerance
from ..stored import changed

FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # raised when alterations do not fit each other
NUDGE, AMPLIFIED = 1e-9, 1e6  # relative change of the inputs; an output that is pure rounding changes this many times as much
STEADY = 1e3  # elements that a change of the inputs changes less than this many times as much are not rounding
APART = 10  # tolerances by which two alterations must differ on a case to be told apart
ULPS = 4  # outputs within this many ulps of the largest value are less than APART tolerances apart: a tolerance is at least one ulp
Combination = tuple[Alteration, ...]
Outputs = Mapping[str, Any]
Expectations = Mapping[str, tolerance.Expectation]
Settle = Callable[[Any], dict[str, Any]]


def answer(combination: Combination, case: Case) -> dict[str, np.ndarray] | None:
    """The outputs of the altered reference; None if it raises, as it does with some known bugs."""
    with contextlib.suppress(*FAILURES):
        return _answer(combination, case)
    return None


def as_it_is(outputs: Any) -> Any:
    """Returns the outputs unchanged; used if every element is well-conditioned."""
    return outputs


def settled(combination: Combination, case: Case, clean: Expectations) -> Settle:
    """Returns a function that replaces the ill-conditioned elements of outputs with the reference's
    values.

    Without epsilon, for example, the norm of a constant row is 0 / 0 or a quotient of two rounding
    errors, and its value means nothing. Only `ill_conditioned` alterations have such elements: there
    the float64 output is not finite, or it changes a million times as much as inputs and parameters
    that change in their ninth digit.
    """
    if not any(one.ill_conditioned for one in combination):
        return as_it_is

    def changing(count: int, amplified: float) -> dict[str, np.ndarray]:
        cases = (case.at("float64"), *(_nudged(case, seed) for seed in range(count)))
        runs = [found for each in cases if (found := answer(combination, each)) and clean.keys() <= found.keys()]
        return {name: elements for name in clean if runs and (elements := _disagreeing([run[name] for run in runs], amplified)).any()}

    left = changing(1, STEADY) and changing(3, AMPLIFIED)
    if not left:
        return as_it_is

    def settle(outputs: Outputs) -> dict[str, Any]:
        fits = {name for name, value in outputs.items() if name in left and np.shape(value) == left[name].shape}
        own = {name: clean[name].reference.astype(outputs[name].dtype) for name in fits}
        return {name: np.where(left[name], own[name], value) if name in fits else value for name, value in outputs.items()}

    return settle


def _nudged(case: Case, seed: int) -> Case:
    """The case in float64, with random digits from the ninth digit on."""
    wide = case.at("float64")

    def nudge(name: str, value: Any) -> Any:
        if not (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
            return value
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return value * (1 + NUDGE * generator.standard_normal(value.shape))

    return dataclasses.replace(wide, inputs=changed(wide.inputs, nudge), parameters=changed(wide.parameters, nudge))


def _disagreeing(runs: Sequence[np.ndarray], amplified: float) -> np.ndarray:
    """The elements that are not finite, or change so many times as much as the inputs."""
    values = np.stack([run.astype(np.float64) for run in runs])
    finite = np.isfinite(values)
    wide = np.where(finite, values, 0.0)
    return ~finite.all(axis=0) | (np.ptp(wide, axis=0) > amplified * NUDGE * np.abs(wide).max(initial=0.0))


def expected(combination: Combination, case: Case, outputs: Outputs | None = None, settle: Settle = as_it_is) -> Expectations | None:
    """The altered reference's expectations for a port with these outputs; None if it raises or is
    random.

    An altered reference may be ill-conditioned, and four summation orders then underestimate its
    noise. If they reject outputs that are closer than `APART` tolerances, random orders are added.
    settle: the function from `settled` that masked the outputs.
    """
    if draws(combination):
        return None
    low = rounds(combination, case)

    def ask(*given: Any) -> dict[str, np.ndarray]:
        return settle(_answer(combination, *given))

    with contextlib.suppress(*FAILURES):
        found = tolerance.expect(case, ask, low)
        if outputs is not None and found.keys() == outputs.keys() and 1 < _excess(found, outputs) < APART:
            found = tolerance.expect(case, ask, low, random_orders=True)
        return near_ties.followed(case, found, outputs, ask, low)
    return None


def separates(case: Case, first: Combination, second: Combination) -> bool:
    """Whether the two altered references differ on the case by at least `APART` tolerances."""
    answers = answer(second, case)
    if _alike(answer(first, case), answers):
        return False
    expectations = expected(first, case)
    if expectations is None or answers is None:
        return (expectations is None) != (answers is None)
    return _excess(expectations, answers) >= APART


def _alike(first: Outputs | None, second: Outputs | None) -> bool:
    """Whether two outputs are too close to be told apart, whatever the noise: a cheap check."""
    if first is None or second is None or first.keys() != second.keys():
        return False
    pairs = [(value, second[name]) for name, value in first.items()]
    return all(one.shape == other.shape and one.dtype == other.dtype and _within_ulps(one, other) for one, other in pairs)


def _within_ulps(first: np.ndarray, second: np.ndarray) -> bool:
    if first.dtype.kind in "biu":
        return np.array_equal(first, second)
    wide, other = first.astype(np.float64), second.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.array_equal(wide[~finite], other[~finite], equal_nan=True):
        return False
    unit = tolerance.ulp(float(np.abs(wide[finite]).max(initial=0.0)), first.dtype)
    return bool((np.abs(wide[finite] - other[finite]) <= ULPS * unit).all())


def rounds(combination: Combination, case: Case) -> bool:
    """Whether an alteration only changes rounding, and does so in the dtype of the case."""
    return any(one.rounding and case.dtype in one.dtypes for one in combination)


def draws(combination: Combination) -> bool:
    """Whether an alteration is random."""
    return any(one.random for one in combination)


def equal(expectations: Expectations | None, outputs: Outputs | None) -> bool:
    """Whether every output is within its tolerance; failures equal nothing, not even each other."""
    if expectations is None or outputs is None:
        return False
    return expectations.keys() == outputs.keys() and _excess(expectations, outputs) <= 1


def _excess(expectations: Expectations, outputs: Outputs) -> float:
    """The largest error of the outputs in units of the tolerance."""
    return max(compare(expectations[name], outputs[name]).excess for name in expectations)


def supports(clean: Expectations, expectations: Expectations, outputs: Outputs) -> bool:
    """Whether a match is meaningful: an output differs from the reference by more than the altered
    reference's tolerance.

    Otherwise that tolerance is so wide that it also accepts outputs close to the reference.
    """
    compared = {name: compare(clean[name], outputs[name]) for name in expectations}
    return any(one.excess > 1 and one.error > expectations[name].bound for name, one in compared.items())


def differ(first: Outputs | None, second: Outputs | None) -> bool:
    """Whether two outputs differ in any bit; NaN equals NaN."""
    if first is None or second is None:
        return first is not second
    return any(not np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind not in "biu") for name in first)


def _answer(combination: Combination, case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    case = _copied(case) if any(one.writes for one in combination) else case
    read = functools.reduce(lambda given, one: one.reads(given) if one.reads else given, combination, case)
    with injected(*(one.on(case) for one in combination)), np.errstate(all="ignore"):
        if read is case:
            found = components.answer(case, around)
        else:
            found = case.part(components.answer(dataclasses.replace(read, compared=""), around))
    if not all(isinstance(value, np.ndarray) for value in found.values()):
        raise TypeError("an output is no array")
    return found


def _copied(case: Case) -> Case:
    """The case with its own arrays."""

    def copy(name: str, value: Any) -> Any:
        return value.copy() if isinstance(value, np.ndarray) else value

    return dataclasses.replace(case, inputs=changed(case.inputs, copy), parameters=changed(case.parameters, copy))
