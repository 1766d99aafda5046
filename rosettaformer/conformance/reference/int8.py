"""What is expected of searches with int8 projections (INT8)."""

import contextlib
from typing import Any

import numpy as np

from reference_numpy import int8

from ..case import Case
from . import components
from .orders import order


def answer(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """Returns `components.answer` with the projections of `reference_numpy.int8`. With it `tolerance.expect` shows how far int8 computed in
    another order may differ: now and then a number is rounded to another integer.
    """
    with order({"affine": int8.affine}):
        return components.answer(case, around)


def beside_float(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """Returns the reference's own answer in float64, and `answer` in other dtypes: with it `tolerance.expect` takes the cost of int8 as the
    noise.
    """
    return (components.answer if case.dtype == "float64" else answer)(case, around)
