"""Measures how far a known bug takes a case beyond its tolerance."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..case import Case
from ..compare import compare
from ..expectation import components
from ..expectation.tolerance import Expectation
from . import Defect, injected


@dataclass(frozen=True)
class Effect:
    """The output of a case on which a known bug has the largest error.

    error: the largest error. allowed: the largest error that passes. times: error in units of the
    tolerance; above 1 the bug is caught. message: why error and times are infinite, otherwise
    empty.
    """

    case: str
    dtype: str
    error: float
    allowed: float
    times: float
    message: str = ""


def effect(defect: Defect, case: Case, expected: Mapping[str, Expectation]) -> Effect:
    """Returns the bug's effect on a case in its own dtype, given its expected outputs."""
    try:
        with injected(defect), np.errstate(all="ignore"):
            got = components.answer(case)
    except ValueError as error:
        allowed = max(expectation.bound for expectation in expected.values())
        return Effect(case.id, case.dtype, np.inf, allowed, np.inf, f"an error: {error}")
    comparisons = {name: compare(expectation, got[name]) for name, expectation in expected.items()}
    name = max(comparisons, key=lambda name: comparisons[name].excess)
    worst = comparisons[name]
    message = "" if np.isfinite(worst.excess) else worst.message
    return Effect(case.id, case.dtype, worst.error, expected[name].bound, worst.excess, message)
