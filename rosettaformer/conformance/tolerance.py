"""The tolerance of a case, derived from the truth itself.

r is the float64 truth on the inputs rounded to the dtype. c_i is the same truth computed in the dtype, with its additions in another
order. What the c_i lie away from r is what plain arithmetic of that dtype costs on this case; a port may cost MAX_FACTOR times as much.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

from reference_numpy import arithmetic

from . import truth
from .case import Case, numpy_dtype

__all__ = ["MAX_FACTOR", "Expectation", "expect", "expectation", "order", "to_tf32", "ulp"]

Answer = Callable[[Case], dict[str, np.ndarray]]

MAX_FACTOR = 4.0
RMSE_FACTOR = {8: 2.0, 4: 2.0, 2: 3.0}  # by the dtype's bytes


@dataclass(frozen=True)
class Expectation:
    """One output of the truth: its value in float64, its dtype, and the errors of plain arithmetic in that dtype."""

    reference: np.ndarray
    dtype: np.dtype
    noise: float  # max_i max |c_i - r|
    noise_rmse: float  # max_i rmse(c_i, r)
    unit: float  # one ulp of the largest |r| in the dtype

    @property
    def bound(self) -> float:
        """The largest error that passes: MAX_FACTOR * noise + one ulp."""
        return MAX_FACTOR * self.noise + self.unit

    @property
    def bound_rmse(self) -> float:
        """The largest root mean square error that passes."""
        return RMSE_FACTOR.get(self.dtype.itemsize, 0) * self.noise_rmse + self.unit

    @property
    def plain_error(self) -> float:
        """What a ratio of 1 stands for: the noise, at least the half ulp to which a result can be rounded at all."""
        return max(self.noise, self.unit / 2)


def expect(case: Case, answer: Answer = truth.answer, rounded: bool = False) -> dict[str, Expectation]:
    """The expectation of every output of a case that has been cast to its dtype.

    answer: what stands for the truth, such as the truth with a defect in it. rounded: r is its answer in the case's own dtype, for what
    differs from the truth in rounding alone.
    """
    reference = answer(case) if rounded else answer(case.at("float64"))
    tf32 = case.dtype == "float32" and case.device.endswith("tf32")
    runs = []
    for replacements in (ORDERS | TF32_ORDERS if tf32 else ORDERS).values():
        with order(replacements):
            runs.append(answer(case))
    return {name: expectation(value, [run[name] for run in runs]) for name, value in reference.items()}


def expectation(reference: np.ndarray, runs: list[np.ndarray]) -> Expectation:
    """What is expected of an output whose float64 value is the reference, when plain arithmetic gave these in the dtype."""
    dtype = runs[0].dtype
    if dtype.kind in "biu" or not reference.size:
        return Expectation(reference, dtype, 0.0, 0.0, 0.0)
    reference = reference.astype(np.float64, copy=False)
    finite = np.isfinite(reference)
    reference_or_0 = np.where(finite, reference, 0.0)
    errors = [np.abs(np.where(finite, run.astype(np.float64), 0.0) - reference_or_0) for run in runs]
    return Expectation(
        reference=reference,
        dtype=dtype,
        noise=max(float(error.max()) for error in errors),
        noise_rmse=max(float(np.sqrt(np.mean(error**2))) for error in errors),
        unit=ulp(float(np.abs(reference_or_0).max()), dtype),
    )


def ulp(value: float, dtype: Any) -> float:
    """The distance from |value| to the next number of the dtype; at least its smallest normal number."""
    kind = numpy_dtype(str(dtype))
    limits = ml_dtypes.finfo(kind)
    return max(float(np.spacing(np.asarray(min(abs(value), 0.75 * float(limits.max)), dtype=kind))), float(limits.smallest_normal))


@contextlib.contextmanager
def order(replacements: dict[str, Callable]) -> Iterator[None]:
    """The truth with some functions of its arithmetic replaced."""
    with contextlib.ExitStack() as stack:
        for name, function in replacements.items():
            stack.enter_context(mock.patch.object(arithmetic, name, function))
        yield


_einsum = arithmetic.einsum


def _contracted(subscripts: str) -> tuple[list[str], str]:
    """The operands' axes, and the letters that the contraction sums over."""
    inputs, output = subscripts.split("->")
    operands = inputs.split(",")
    return operands, "".join(letter for letter in operands[0] if letter not in output)


def _einsum_backwards(subscripts: str, *operands: np.ndarray) -> np.ndarray:
    """The contraction from its last term to its first."""
    axes, summed = _contracted(subscripts)
    flipped = [np.flip(x, tuple(a.index(letter) for letter in summed)) for a, x in zip(axes, operands, strict=True)]
    return _einsum(subscripts, *map(np.ascontiguousarray, flipped))


def _einsum_in_two(halves: Callable[[int], tuple[slice, slice]]) -> Callable:
    """The contraction as the sum, in the operands' dtype, of the contractions over two halves of its terms."""

    def contract(subscripts: str, *operands: np.ndarray) -> np.ndarray:
        axes, summed = _contracted(subscripts)
        size = operands[0].shape[axes[0].index(summed[0])]
        parts = []
        for half in halves(size):
            chosen = [x[tuple(half if letter == summed[0] else slice(None) for letter in a)] for a, x in zip(axes, operands, strict=True)]
            parts.append(_einsum(subscripts, *chosen))
        return parts[0] + parts[1]

    return contract


def _total_in_two(halves: Callable[[int], tuple[slice, slice]]) -> Callable:
    def total(array: np.ndarray, axis: int) -> np.ndarray:
        first, second = (np.moveaxis(array, axis, -1)[..., half] for half in halves(array.shape[axis]))
        return np.moveaxis(first.sum(-1, keepdims=True) + second.sum(-1, keepdims=True), -1, axis)

    return total


def _alternating(size: int) -> tuple[slice, slice]:
    return slice(0, None, 2), slice(1, None, 2)


def _in_the_middle(size: int) -> tuple[slice, slice]:
    return slice(0, size // 2), slice(size // 2, None)


def _total_backwards(array: np.ndarray, axis: int) -> np.ndarray:
    return np.sum(np.ascontiguousarray(np.flip(array, axis)), axis=axis, keepdims=True)


def _total_one_by_one(array: np.ndarray, axis: int) -> np.ndarray:
    return np.take(np.cumsum(array, axis=axis, dtype=array.dtype), [-1], axis=axis)


def _mean_by_reciprocal(array: np.ndarray, axis: int) -> np.ndarray:
    return arithmetic.total(array, axis) * (array.dtype.type(1) / array.dtype.type(array.shape[axis]))


def _divide_by_reciprocal(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return numerator * (denominator.dtype.type(1) / denominator)


def _power_by_logarithm(base: float, exponent: np.ndarray) -> np.ndarray:
    return np.exp(exponent * np.log(base))


def _exp_by_square(x: np.ndarray) -> np.ndarray:
    return np.square(np.exp(x / 2))


def _tanh_by_exponential(x: np.ndarray) -> np.ndarray:
    return 1 - 2 / (np.exp(np.minimum(2 * x, 80)) + 1)  # beyond 80 the result is 1 in every dtype


def _erf_by_complement(x: np.ndarray) -> np.ndarray:
    return (1 - np.asarray(np.frompyfunc(math.erfc, 1, 1)(x), dtype=x.dtype)).astype(x.dtype)


def _einsum_tf32(subscripts: str, *operands: np.ndarray) -> np.ndarray:
    return _einsum(subscripts, *(to_tf32(x) for x in operands))


def to_tf32(array: np.ndarray) -> np.ndarray:
    """float32 rounded to the 10 stored mantissa bits that TF32 multiplies with."""
    if array.dtype != np.float32:
        return array
    bits = np.ascontiguousarray(array).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


ORDERS: dict[str, dict[str, Callable]] = {
    "plain": {},
    "backwards": {"einsum": _einsum_backwards, "total": _total_backwards, "mean": _mean_by_reciprocal, "power": _power_by_logarithm},
    "alternating": {
        "einsum": _einsum_in_two(_alternating),
        "total": _total_one_by_one,
        "divide": _divide_by_reciprocal,
        "exp": _exp_by_square,
    },
    "two halves": {
        "einsum": _einsum_in_two(_in_the_middle),
        "total": _total_in_two(_alternating),
        "tanh": _tanh_by_exponential,
        "erf": _erf_by_complement,
    },
}
TF32_ORDERS: dict[str, dict[str, Callable]] = {"tf32": {"einsum": _einsum_tf32}}
