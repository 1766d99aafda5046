"""Alterations that give a float64 port's answers but for their last digits: a table or a constant of it has fewer.

What is left must be small beside the error, and as small as float32 makes it beside the output. That is no equality, and is said.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..altered import Combination, Outputs
from ..symptoms.conditions import condition
from .evidence import Evidence

DIGITS = 1e-5  # of the largest value: so much float32 may leave everywhere
MOST = 1e-2  # of the error: in far positions float32 leaves more
USUAL = 1e-4  # of the error: at least half of the cases whose errors are larger than digits leave less
ROUNDING = 2.0**-38  # of the largest value: operations in float64 leave less, numbers of float32 more (between 2^-53 and 2^-24)
SCREENED = 1  # failing cases, the smallest, one of which must be met


class Nearly(NamedTuple):
    """found: the combinations. where: a property of the cases of which it holds; empty where they are all. on: their number. others: the
    cases that fail otherwise. left: the largest share of the error that is left. rest: that of the largest value."""

    found: list[Combination]
    where: str
    on: int
    others: list[str]
    left: float
    rest: float


def nearly(evidence: Evidence, known: Combination = ()) -> Nearly | None:
    """What comes so near on all cases that fail, or on the half of them that a property tells from the others; None where nothing does."""
    probes = evidence.probes
    if any(probe.dtype != "float64" for probe in probes):
        return None
    defects, settings = itertools.islice(evidence.hypotheses.tiers(), 2)
    best: Nearly | None = None
    further = [(*known, one) for one in (*defects, *settings) if not one.rounding and one not in known]
    for combination in ([known] if known else []) + further:
        shares = _shares(evidence, combination)
        large = [share for share in shares.values() if share]
        if 2 * len(shares) < len(evidence.failing) or not large or float(np.median(large)) > USUAL:
            continue
        if known != combination and not any(evidence.hypotheses.alters(combination[-1], index) for index in range(len(probes))):
            continue
        met, others = ([probes[index] for index in evidence.failing if (index in shares) is value] for value in (True, False))
        where = condition(met, others) if others else ""
        if others and not where:
            continue
        left = max(shares.values())
        if best is None or left < best.left / 2:
            best = Nearly([combination], where, len(met), [case.id for case in others], left, rest(evidence, combination, shares))
        elif left <= 2 * best.left:
            best.found.append(combination)
    return best


def _shares(evidence: Evidence, combination: Combination) -> dict[int, float]:
    """The share of the error that is left on every case that fails and is met; none where a case that does not fail would."""
    shares: dict[int, float] = {}
    for count, index in enumerate(evidence.cheapest()):
        if (share := _share(evidence, combination, index)) is not None:
            shares[index] = share
        if (count + 1 == SCREENED and not shares) or 2 * (count + 1 - len(shares)) > len(evidence.failing):
            return {}
    return shares if all(_share(evidence, combination, index, right=True) is not None for index in evidence.right()) else {}


def _share(evidence: Evidence, combination: Combination, index: int, right: bool = False) -> float | None:
    """The share of an answer's error that the altered reference leaves, 0 of one that is digits; None where it is not small."""
    clean = {name: one.reference for name, one in evidence.clean[index].items()}
    largest = 0.0
    for sizes in _sizes(evidence, combination, index, clean):
        if sizes is None:
            return None
        left, error, scale = sizes
        if left > max(DIGITS * scale, 0.0 if right else MOST * error):
            return None
        largest = max(largest, left / error if MOST * error > DIGITS * scale else 0.0)
    return largest


def rest(evidence: Evidence, combination: Combination, indices: Iterable[int]) -> float:
    """How far these answers lie from the altered reference, as a share of the largest value; infinite where they cannot be compared."""
    shares = [0.0]
    for sizes in (sizes for index in indices for sizes in _sizes(evidence, combination, index)):
        if sizes is None:
            return np.inf
        left, _, scale = sizes
        shares.append(left / scale if scale else np.inf if left else 0.0)
    return max(shares)


def _sizes(
    evidence: Evidence, combination: Combination, index: int, clean: Outputs | None = None
) -> Iterator[tuple[float, float, float] | None]:
    """For each output how far the answer lies from the prediction and from the reference, and how large the reference is; None where they
    cannot be compared. clean: the reference's outputs; the altered reference's if None.
    """
    predicted, answer = evidence.hypotheses.answer(combination, index), evidence.answers[index]
    if predicted is None or predicted.keys() != answer.keys():
        yield None
        return
    for name, value in predicted.items():
        arrays = np.asarray(answer[name]), value, np.asarray((clean or predicted)[name])
        finite = np.isfinite(arrays[-1])
        if len({array.shape for array in arrays}) > 1 or not all(np.array_equal(np.isfinite(array), finite) for array in arrays):
            yield None
            return
        got, near, right = (np.where(finite, array, 0).astype(np.float64) for array in arrays)
        left, error, scale = (float(np.abs(array).max(initial=0.0)) for array in (got - near, got - right, right))
        yield left, error, scale
