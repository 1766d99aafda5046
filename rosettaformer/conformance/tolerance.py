"""The tolerance of a case, derived from the truth itself.

r is the float64 truth on the inputs rounded to the dtype. c_i is the same truth computed in the dtype, with its additions in another
order. What the c_i lie away from r is what plain arithmetic of that dtype costs on this case; a port may cost MAX_FACTOR times as much.
The largest of many elements' errors says how large an error may be; where the answer is one number, or a gradient, whose elements all hang
on the same few roundings, four orders do not, and the c_i are also taken in SHUFFLES random ones; of a search, which scores few answers,
in SEARCHED, and there the c_i make the choices of r, so that they score the same answers. Of what is drawn at random r is the mean of DRAWS
seeds and the c_i are what each gives.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from . import statistics, truth
from .case import Case, numpy_dtype
from .choices import Chooser, Key, Replay, chosen_by
from .orders import GRADIENT_ORDERS, ORDERS, TF32_ORDERS, order, shuffled, to_tf32

__all__ = ["MAX_FACTOR", "ORDERS", "TF32_ORDERS", "Expectation", "expect", "expectation", "order", "searched", "to_tf32",
           "ulp"]  # fmt: skip

Answer = Callable[..., dict[str, np.ndarray]]  # of a case; of a search also of what is entered while it runs

MAX_FACTOR = 4.0
RMSE_FACTOR = {8: 2.0, 4: 2.0, 2: 3.0}  # by the dtype's bytes
SHUFFLES, SEARCHED, DRAWS = 16, 8, 32


@dataclass(frozen=True)
class Expectation:
    """One output of the truth: its value in float64, its dtype, and the errors of plain arithmetic in that dtype."""

    reference: np.ndarray
    dtype: np.dtype
    noise: float  # max_i max |c_i - r|
    noise_rmse: float  # max_i rmse(c_i, r)
    unit: float  # one ulp of the largest |r| in the dtype
    note: str = ""  # why an answer that differs does

    @property
    def bound(self) -> float:
        """The largest error that passes: MAX_FACTOR * noise + one ulp."""
        return MAX_FACTOR * self.noise + self.unit

    @property
    def bound_rmse(self) -> float:
        """The largest root mean square error that passes; of one number it is the error itself."""
        if self.reference.size == 1:
            return self.bound
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
    if case.component in statistics.RANDOM:
        return _of_draws(case, answer)
    if case.component in truth.SEARCHES:
        return searched(case, Chooser(), answer, rounded)[0]
    reference = answer(case) if rounded else answer(case.at("float64"))
    orders = _orders(case)
    gradient = bool(truth.forward_of(case.component))
    orders += list(GRADIENT_ORDERS.values()) if gradient else []
    if gradient or any(value.size == 1 and value.dtype.kind == "f" for value in reference.values()):
        orders += [shuffled(seed) for seed in range(SHUFFLES)]
    runs = []
    for replacements in orders:
        with order(replacements):
            runs.append(answer(case))
    return {name: expectation(value, [run[name] for run in runs]) for name, value in reference.items()}


def searched(
    case: Case, chooser: Chooser, answer: Answer = truth.answer, rounded: bool = False
) -> tuple[dict[str, Expectation], list[dict[Key, np.ndarray]]]:
    """The expectation of a search whose choices the chooser makes; and the scores that each order chooses by, when it makes the same."""
    reference = answer(case if rounded else case.at("float64"), chosen_by(chooser))
    runs, scores = [], []
    for replacements in _orders(case) + [shuffled(seed) for seed in range(SEARCHED)]:
        replay = Replay(chooser.made)
        with order(replacements):
            runs.append(answer(case, chosen_by(replay)))
        scores.append(replay.scores)
    return {name: expectation(value, [run[name] for run in runs]) for name, value in reference.items()}, scores


def _orders(case: Case) -> list[dict[str, Callable]]:
    return list((ORDERS | TF32_ORDERS if case.dtype == "float32" and case.device.endswith("tf32") else ORDERS).values())


def _of_draws(case: Case, answer: Answer) -> dict[str, Expectation]:
    """What is expected of statistics of random numbers: their mean over DRAWS seeds, and how far one draw lies from it."""
    draws = [answer(dataclasses.replace(case, inputs=dict(case.inputs) | {"seed": seed})) for seed in range(DRAWS)]
    result = {}
    for name, first in draws[0].items():
        runs = [draw[name] for draw in draws]
        mean = first if first.dtype.kind in "iu" else np.mean([run.astype(np.float64) for run in runs], axis=0)
        result[name] = expectation(np.asarray(mean), runs)
    return result


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
