"""What is expected of searches whose projections are int8 (INT8)."""

import contextlib
from typing import Any

import numpy as np

from reference_numpy import int8

from ..case import Case
from . import components
from .orders import order

__all__ = ["answer", "beside_float"]


def answer(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """`components.answer` with the projections of `reference_numpy.int8`: with it `tolerance.expect` says how far int8 computed in another
    order may lie away, in which a number now and then is rounded to another integer.
    """
    with order({"affine": int8.affine}):
        return components.answer(case, around)


def beside_float(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """The reference itself in float64, and in other dtypes `answer`: with it `tolerance.expect` takes what int8 costs as the noise."""
    return (components.answer if case.dtype == "float64" else answer)(case, around)
