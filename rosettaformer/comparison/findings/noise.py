"""Differences between two sides in units of their own rounding noise."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.modules.nests import splits
from ...judge.compare import HIGHEST
from ...judge.expectation.tolerance import MAX_FACTOR, ulp

SAME = 1000.0  # times the estimated noise of float64, which is a guess from one float32 run; real differences are far larger
WIDER = float(np.finfo(np.float64).eps / np.finfo(np.float32).eps)  # noise of float64 relative to float32


@dataclass(frozen=True)
class Difference:
    """The difference between two arrays.

    error: max|left - right| in float32. noise: the larger max|float32 - float64| of the sides, at
    least half an ulp. units: error / noise. wide: max|left - right| in float64, in units of
    float64's estimated noise; None if a side has no float64. verdict: `equal` if the sides agree in
    float64 up to SAME times its noise; `rounding` if they agree only in float32, up to MAX_FACTOR
    times its noise plus one ulp; otherwise `differs`.
    """

    verdict: str
    error: float = 0.0
    noise: float = 0.0
    units: float = 0.0
    wide: float | None = None
    note: str = ""
    shapes: bool = False  # whether the shapes differ
    jumps: int | None = None  # how many numbers near ties decide

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None and value is not False and value != ""}


@np.errstate(invalid="ignore", over="ignore")
def difference(left: np.ndarray, right: np.ndarray, left_wide: np.ndarray | None, right_wide: np.ndarray | None) -> Difference:
    """Compares an array of two sides, in float32 and in float64, in the same order of axes.

    One side may split an axis of the other, such as features into heads.
    """
    if left.shape != right.shape and splits(left.shape, right.shape):
        right, right_wide = right.reshape(left.shape), None if right_wide is None else right_wide.reshape(left.shape)
    if left.shape != right.shape:
        return Difference("differs", HIGHEST, 0.0, HIGHEST, None, f"shape {left.shape} on the left, {right.shape} on the right", True)
    if not left.size:
        return Difference("not comparable", note="it is empty")
    if (left.dtype.kind == "f") != (right.dtype.kind == "f"):
        return Difference("not comparable", note=f"{left.dtype} on the left, {right.dtype} on the right")
    if left.dtype.kind != "f":
        wrong = int((left != right).sum())
        return Difference("differs", 1.0, 0.0, HIGHEST, None, f"{wrong} of {left.size} differ") if wrong else Difference("equal")
    if (places := int((np.isfinite(left) != np.isfinite(right)).sum())):  # fmt: skip
        note = f"{places} of {left.size} elements are NaN or infinite on one side only"
        return Difference("differs", HIGHEST, 0.0, HIGHEST, None, note)
    finite = np.isfinite(left)
    if not finite.any():
        return Difference("not comparable", note="no element is finite")
    return _finite(left, right, left_wide, right_wide, finite)


def _finite(left: np.ndarray, right: np.ndarray, left_wide: Any, right_wide: Any, finite: np.ndarray) -> Difference:
    narrow = [_wide(array, finite) for array in (left, right)]
    wides = [None if array is None or array.dtype != np.float64 else _wide(array, finite) for array in (left_wide, right_wide)]
    largest = max(float(np.abs(array).max()) for array in narrow)
    if largest == 0.0:
        return Difference("not comparable", note="it is zero on both sides")
    noises = [float(np.abs(a - b).max()) for a, b in zip(narrow, wides, strict=True) if b is not None]
    unit = ulp(largest, "float32")
    noise = max([*noises, unit / 2])
    error = float(np.abs(narrow[0] - narrow[1]).max())
    allowed = MAX_FACTOR * noise + unit
    units = min(error / noise, HIGHEST)
    if wides[0] is None or wides[1] is None:
        note = "one side has no float64, so only float32 is compared"
        return Difference("differs" if error > allowed else "rounding" if error else "equal", error, noise, units, None, note)
    wide_error = float(np.abs(wides[0] - wides[1]).max())
    wide = min(wide_error / (noise * WIDER), HIGHEST)
    if error <= allowed and wide_error <= SAME * (noise + unit) * WIDER:
        return Difference("equal", error, noise, units, wide)
    if error <= allowed:
        note = f"the difference in float64 is {wide_error / noise:.1g} of float32's noise"
        return Difference("rounding", error, noise, units, wide, note)
    return Difference("differs", error, noise, units, wide)


def _wide(array: np.ndarray, finite: np.ndarray) -> np.ndarray:
    return np.where(finite & np.isfinite(array), array, 0).astype(np.float64)
