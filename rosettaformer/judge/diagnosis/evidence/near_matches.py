"""Alterations that match a float64 port except for the last digits, as when a table or constant has
fewer digits.

The remaining error must be small relative to the error, and as small as float32 makes it relative
to the output. Such a match is reported as imprecise.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..altered import Combination, Outputs
from ..symptoms.conditions import condition
from .evidence import Evidence

DIGITS = 1e-5  # share of the largest value that float32 may leave anywhere
MOST = 1e-2  # share of the error that may remain; float32 leaves more at far positions
USUAL = 1e-4  # share of the error below which at least half of the cases with larger errors must stay
SCREENED = 1  # number of smallest failing cases, one of which must match


class Nearly(NamedTuple):
    """A match except for the last digits.

    found: the combinations. where: a property of the matching cases; empty if all match. on: their
    number. others: the other failing cases. left: the largest remaining share of the error. rest:
    the same as a share of the largest value.
    """

    found: list[Combination]
    where: str
    on: int
    others: list[str]
    left: float
    rest: float


def nearly(evidence: Evidence, known: Combination = ()) -> Nearly | None:
    """The match on all failing cases, or on half of them if a property separates those."""
    probes = evidence.probes
    if any(probe.dtype != "float64" for probe in probes):
        return None
    best: Nearly | None = None
    further = [(*known, one) for one in evidence.hypotheses.catalogued if not one.rounding and one not in known]
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
    """The remaining share of the error by failing case; empty if a passing case does not match."""
    shares: dict[int, float] = {}
    for count, index in enumerate(evidence.cheapest()):
        if (share := _share(evidence, combination, index)) is not None:
            shares[index] = share
        if (count + 1 == SCREENED and not shares) or 2 * (count + 1 - len(shares)) > len(evidence.failing):
            return {}
    return shares if all(_share(evidence, combination, index, right=True) is not None for index in evidence.right()) else {}


def _share(evidence: Evidence, combination: Combination, index: int, right: bool = False) -> float | None:
    """The remaining share of the error, 0 for lost digits; None if it is not small."""
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
    """The largest difference as a share of the largest value; infinite if incomparable."""
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
    """For each output: its distance from the prediction, its distance from the reference, and the
    size of the reference.

    None if they cannot be compared. clean: the reference's outputs; by default the altered
    reference's.
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
