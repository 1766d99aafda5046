"""The tolerance for an exported file with a lower precision, against the same reference.

r is the float64 reference on the checkpoint's weights. c_i is the reference computed as files of
that precision are: for half precision with rounded weights, in several summation orders; for int8
with weights rounded per tensor, and with inputs of projections rounded per tensor or per token. A
file may have MAX_FACTOR times the largest error of these. Searches with int8 projections (INT8) are
compared with `answer`. Sources: `quantize_dynamic` of ONNX Runtime, LiteRT's dynamic range
quantization, torchao's `Int8DynamicActivationInt8WeightConfig`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic, int8

from ..case import Case
from ..stored import changed
from . import components, tolerance
from .orders import ORDERS, order

PRECISIONS = ("int8", "float16", "bfloat16")
LEVELS = 255  # of an unsigned integer of 8 bits

Arrays = dict[str, np.ndarray]


@np.errstate(over="ignore", invalid="ignore")  # overflow makes an output incomparable
def expect(case: Case, own: tolerance.Expectations, precision: str) -> tolerance.Expectations:
    """Returns the expectations `own` with the noise of a file of that precision, which follows the decisions of routers."""
    if any(one.decisions for one in own.values()) and case.component not in components.SEARCHES:
        return tolerance.decided(case, components.answer, False, {}, lower=widening(precision))[0]
    return _widened(precision, case, own, components.answer)


def widening(precision: str) -> tolerance.Lower | None:
    """Returns the function that widens expectations by the noise of that precision, if there is one."""
    return functools.partial(_widened, precision) if precision else None


def _widened(precision: str, case: Case, own: tolerance.Expectations, ask: tolerance.Answer) -> tolerance.Expectations:
    runs = list(_int8(case, ask) if precision == "int8" else _half(case, precision, ask))
    found = {}
    for name, one in own.items():
        if one.dtype.kind in "biu" or not one.reference.size:
            found[name] = one
            continue
        wide = tolerance.expectation(one.reference, [run[name].astype(one.dtype) for run in runs])
        noise, noise_rmse = (float(np.nanmax([new, old])) for new, old in ((wide.noise, one.noise), (wide.noise_rmse, one.noise_rmse)))
        found[name] = dataclasses.replace(one, noise=noise, noise_rmse=noise_rmse, lower=precision, own=one.bound)
    return found


def answer(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """Returns `components.answer` with the projections of `reference_numpy.int8`.

    `tolerance.expect` with this function measures how much int8 depends on the summation order: now
    and then a number rounds to another integer.
    """
    with order({"affine": int8.affine}):
        return components.answer(case, around)


def beside_float(case: Case, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, np.ndarray]:
    """Returns float64 outputs of the reference, and `answer` otherwise: int8's error is noise."""
    return (components.answer if case.dtype == "float64" else answer)(case, around)


def _half(case: Case, precision: str, ask: tolerance.Answer) -> Iterator[Arrays]:
    low = case.at(precision)
    for replacements in ORDERS.values():
        with order(replacements):
            yield ask(low)


def _int8(case: Case, ask: tolerance.Answer) -> Iterator[Arrays]:
    rounded = dataclasses.replace(case, parameters=changed(case.parameters, _by_tensor))
    yield ask(rounded)
    for projection, one in ((_affine, rounded), (int8.affine, case)):
        with order({"affine": projection}):
            yield ask(one)


def _by_tensor(name: str, array: np.ndarray) -> np.ndarray:
    """Rounds a kernel or table to 255 numbers; vectors stay unchanged."""
    if array.ndim < 2 or not array.size:
        return array
    x8, scale = int8.quantised(array, tuple(range(array.ndim)))
    return (x8 * scale).astype(array.dtype)


def _affine(subscripts: str, x: np.ndarray, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
    """`arithmetic.affine` with the input rounded to 256 numbers of its range, including 0."""
    if x.size:
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        scale = max(high - low, 1e-30) / LEVELS
        x = (np.rint((x - low) / scale) * scale + low).astype(x.dtype)
    return _plain_affine(subscripts, x, parameters)


_plain_affine: Callable[..., np.ndarray] = arithmetic.affine
