"""The altered reference: its answers, and what a port that does the same may answer."""

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..case import Case
from ..catalogue import Alteration, injected
from ..compare import compare
from ..expectation import components, near_ties, tolerance
from ..stored import changed

# what some alterations raise, since one may not expect what another leaves
FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
NUDGE, AMPLIFIED = 1e-9, 1e6  # a relative change of the inputs; an output that is only rounding changes by so many times more
APART = 10  # two alterations that differ by this many tolerances on a case are told apart by it
ULPS = 4  # answers within as many ulps of the largest value are less than APART tolerances apart, since a tolerance is at least one ulp
Combination = tuple[Alteration, ...]
Outputs = Mapping[str, Any]
Expectations = Mapping[str, tolerance.Expectation]
Settle = Callable[[Any], dict[str, Any]]


def answer(combination: Combination, case: Case) -> dict[str, np.ndarray] | None:
    """The outputs of the altered reference; None if it fails, as some defects make it."""
    with contextlib.suppress(*FAILURES):
        return _answer(combination, case)
    return None


def as_it_is(outputs: Any) -> Any:
    """The outputs unchanged: all of them are determined."""
    return outputs


def settled(combination: Combination, case: Case, clean: Expectations) -> Settle:
    """Returns a function that masks the ill-conditioned elements of outputs: it puts the reference's own values in their place.

    Without an epsilon the norm of a constant row is 0 / 0, or the quotient of two roundings, and no answer there says anything. Only an
    alteration that is `undetermined` has such elements: its float64 answer is not finite there, or it changes a million times as much as
    the inputs and the parameters do if these change in their ninth digit.
    """
    if not any(one.undetermined for one in combination):
        return as_it_is
    runs = [found for each in (case, *(_nudged(case, seed) for seed in range(3))) if (found := answer(combination, each.at("float64")))]
    left = {name: _disagreeing([run[name] for run in runs]) for name in clean if runs}
    if not any(elements.any() for elements in left.values()):
        return as_it_is

    def settle(outputs: Outputs) -> dict[str, Any]:
        fits = {name for name, value in outputs.items() if name in left and np.shape(value) == left[name].shape}
        own = {name: clean[name].reference.astype(outputs[name].dtype) for name in fits}
        return {name: np.where(left[name], own[name], value) if name in fits else value for name, value in outputs.items()}

    return settle


def _nudged(case: Case, seed: int) -> Case:
    """The case in float64, with random digits from the ninth on."""
    wide = case.at("float64")

    def nudge(name: str, value: Any) -> Any:
        if not (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
            return value
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return value * (1 + NUDGE * generator.standard_normal(value.shape))

    return dataclasses.replace(wide, inputs=changed(wide.inputs, nudge), parameters=changed(wide.parameters, nudge))


def _disagreeing(runs: Sequence[np.ndarray]) -> np.ndarray:
    values = np.stack([run.astype(np.float64) for run in runs])
    finite = np.isfinite(values)
    wide = np.where(finite, values, 0.0)
    return ~finite.all(axis=0) | (np.ptp(wide, axis=0) > AMPLIFIED * NUDGE * np.abs(wide).max(initial=0.0))


def expected(combination: Combination, case: Case, outputs: Outputs | None = None, settle: Settle = as_it_is) -> Expectations | None:
    """The expectations by the altered reference, for a port that gave these outputs; None if it fails or is random, and so equals nothing.

    An altered reference may be ill-conditioned, and four orders then underestimate its noise. So if they refuse an answer that is nearer
    than `APART` tolerances, the random orders of gradients join them. settle: the function by `settled` that has masked the outputs.
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
    """Whether two answers are too near to be told apart, whatever the noise is. One run of each shows it; the noise needs many."""
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
    """Whether an alteration only changes how numbers round, and does so in the dtype of the case."""
    return any(one.rounding and case.dtype in one.dtypes for one in combination)


def draws(combination: Combination) -> bool:
    """Whether an alteration is random."""
    return any(one.random for one in combination)


def equal(expectations: Expectations | None, outputs: Outputs | None) -> bool:
    """Whether every output is within its tolerance. A failure equals nothing, not even another failure."""
    if expectations is None or outputs is None:
        return False
    return expectations.keys() == outputs.keys() and _excess(expectations, outputs) <= 1


def _excess(expectations: Expectations, outputs: Outputs) -> float:
    """The largest error of the outputs in tolerances."""
    return max(compare(expectations[name], outputs[name]).excess for name in expectations)


def supports(clean: Expectations, expectations: Expectations, outputs: Outputs) -> bool:
    """Whether an answer discriminates: the reference refuses an output by more than the altered reference's tolerance.

    If it does not, the altered reference rounds so much that its tolerance holds whatever is near the reference: that says nothing.
    """
    compared = {name: compare(clean[name], outputs[name]) for name in expectations}
    return any(one.excess > 1 and one.error > expectations[name].bound for name, one in compared.items())


def differ(first: Outputs | None, second: Outputs | None) -> bool:
    """Whether two answers differ in any bit; NaN equals NaN."""
    if first is None or second is None:
        return first is not second
    return any(not np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind not in "biu") for name in first)


def _answer(combination: Combination, case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    with injected(*(one.on(case) for one in combination)), np.errstate(all="ignore"):
        return components.answer(case, around)
