"""The family of roundings: the errors are those of arithmetic or storage in a smaller dtype."""

from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from ...reference import components
from .answered import Answered
from .symptom import Symptom

SMALLER = {8: ("bfloat16", "float16", "float32"), 4: ("bfloat16", "float16"), 2: ()}  # by the bytes of the dtype
FACTOR = 8  # by which an error may be larger or smaller than that of the dtype's arithmetic


def rounded(failing: Sequence[Answered]) -> Iterator[Symptom]:
    """Reports the smallest dtype that holds the answers exactly, or has their errors."""
    if not all(one.shaped and one.expectation.dtype.kind == "f" and np.isfinite(one.got).all() for one in failing):
        return
    if any(np.ptp(one.got) == 0 for one in failing):
        return
    for dtype in SMALLER[failing[0].expectation.dtype.itemsize]:  # what bfloat16 holds, float32 holds, too
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        if all(np.array_equal(one.got, one.got.astype(kind)) and not _held(one, kind) for one in failing):
            if all(one.close(one.got, one.reference.astype(kind).astype(np.float64), _unit(one, kind)).all() for one in failing):
                yield Symptom("rounding", f"{{output}} is the reference rounded to {dtype}: every element is a {dtype} number", 94)
            else:
                yield Symptom("rounding", f"{{output}} holds {dtype} numbers: it is rounded to {dtype}", 64)
            return
        if dtype == "float32" and all(_as_far(one, dtype) for one in failing):  # what a mistake makes is seldom so small
            yield Symptom("rounding", f"{{output}} is as far from the reference as {dtype} arithmetic makes it", 58)
            return


def _held(answered: Answered, kind: np.dtype) -> bool:
    """Whether the dtype holds the reference exactly, too, or there are too few numbers to tell."""
    return np.array_equal(answered.reference, answered.reference.astype(kind)) or answered.got.size < FACTOR


def _unit(answered: Answered, kind: np.dtype) -> float:
    return float(np.spacing(np.abs(answered.reference).max().astype(kind)).astype(np.float64)) / 2


def _as_far(answered: Answered, dtype: str) -> bool:
    """Whether the error on this case is that of the reference in the dtype, within a factor."""
    case = answered.case.at(dtype)
    low = components.answer(case)[answered.name].astype(np.float64)
    plain, error = (float(np.sqrt(np.mean((array - answered.reference) ** 2))) for array in (low, answered.got))
    return bool(plain > 0 and plain / FACTOR <= error <= plain * FACTOR)
