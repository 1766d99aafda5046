"""Compares a port's output with the reference's: whether it passes and where it is wrong."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from .expectation.tolerance import Expectation, ulp

CELLS = 48  # cells along each side of a heat map
HIGHEST = 1e18  # the largest error, and that of elements which are NaN or infinite unlike the reference's


@dataclass(frozen=True)
class Comparison:
    """The comparison of one output.

    ratio: the largest error divided by plain NumPy's own in the dtype; 1 is as accurate as NumPy.
    excess: the error divided by the largest that passes; up to 1 conforms. message: what is wrong;
    empty if nothing is. incomparable: why the values mean nothing, whatever the error is; empty if
    they do, and for a wrong shape or dtype.
    """

    ratio: float
    excess: float
    error: float
    noise: float
    ulps: float = 0.0
    worst: tuple[int, ...] = ()
    message: str = ""
    incomparable: str = ""


def compare(expectation: Expectation, got: Any) -> Comparison:
    """Compares shape, dtype, positions of NaN and infinity, then the largest and the RMS error."""
    if not isinstance(got, np.ndarray):
        return _refusal(f"must be an array; got {type(got).__name__}")
    reference, dtype = expectation.reference, expectation.dtype
    if got.shape != reference.shape:
        return _refusal(f"must have shape {reference.shape}; got {got.shape}")
    integers = dtype.kind in "iu" and got.dtype.kind in "iu"
    if got.dtype != dtype and not integers:
        return _refusal(f"must be {dtype}; got {got.dtype}{_although_right(expectation, got)}")
    reason = expectation.incomparable
    if not np.isfinite(expectation.bound):
        return Comparison(np.nan, np.nan, np.nan, expectation.noise, incomparable=reason)
    if not got.size:
        return Comparison(0.0, 0.0, 0.0, expectation.noise, incomparable=reason)
    if dtype.kind in "biu":
        return dataclasses.replace(_compare_exactly(expectation, got), incomparable=reason)
    wide = got.astype(np.float64)
    if message := _other_places(expectation.reference, wide):
        return _refusal(message)
    return dataclasses.replace(_compare_closely(expectation, wide), incomparable=reason)


def _although_right(expectation: Expectation, got: np.ndarray) -> str:
    """Returns a remark on an output of the wrong dtype with conforming values; empty otherwise."""
    kinds = {expectation.dtype.kind, got.dtype.kind, expectation.reference.dtype.kind}
    if not got.size or not kinds <= {"f", "V"} or not np.isfinite(expectation.bound):  # V: bfloat16
        return ""
    wide = got.astype(np.float64)
    if _other_places(expectation.reference, wide) or _compare_closely(expectation, wide).excess > 1:
        return ""
    return "; its values are correct"


def _refusal(message: str) -> Comparison:
    return Comparison(np.inf, np.inf, np.inf, 0.0, message=message)


def _compare_exactly(expectation: Expectation, got: np.ndarray) -> Comparison:
    if wrong := np.argwhere(expectation.reference != got).tolist():
        message = "; ".join(filter(None, (f"{len(wrong)} of {got.size} elements differ", expectation.note)))
        return Comparison(np.inf, np.inf, 1.0, 0.0, worst=tuple(wrong[0]), message=message)
    return Comparison(0.0, 0.0, 0.0, 0.0)


def _other_places(reference: np.ndarray, got: np.ndarray) -> str:
    """Returns what is wrong with the positions of NaN and infinity; empty if nothing is."""
    for kind, test in (("NaN", np.isnan), ("inf", np.isposinf), ("-inf", np.isneginf)):
        found, wanted = test(got), test(reference)
        for places, are in ((found & ~wanted, "are"), (wanted & ~found, "are not")):
            if count := int(places.sum()):
                return f"{count} of {got.size} elements {are} {kind} although the reference is{' not' * (are == 'are')}"
    return ""


def _compare_closely(expectation: Expectation, got: np.ndarray) -> Comparison:
    reference = expectation.reference
    finite = np.isfinite(reference)
    error = np.where(finite, got, 0.0)
    error -= np.where(finite, reference, 0.0)
    np.abs(error, out=error)  # in place: outputs may be large
    worst = np.unravel_index(int(error.argmax()), error.shape)
    largest, rmse = float(error[worst]), float(np.sqrt(np.mean(np.square(error, out=error))))
    excess = max(largest / expectation.bound, rmse / expectation.bound_rmse)
    message = ""
    if excess > 1:
        message = f"error {largest:.3g} at {[int(i) for i in worst]}, allowed {expectation.bound:.3g}"
        if largest <= expectation.bound:
            message = f"root mean square error {rmse:.3g}, allowed {expectation.bound_rmse:.3g}"
    return Comparison(
        ratio=largest / expectation.plain_error,
        excess=excess,
        error=largest,
        noise=expectation.noise,
        ulps=largest / ulp(float(np.nan_to_num(reference[worst])), expectation.dtype),
        worst=tuple(int(i) for i in worst),
        message=message,
    )


def relative_error(expectation: Expectation, got: np.ndarray) -> np.ndarray:
    """Returns |error| / allowed for every element; exact dtypes have 0 or HIGHEST."""
    reference = expectation.reference
    if expectation.dtype.kind in "biu":
        return np.where(reference != got, HIGHEST, 0.0)
    values = got.astype(np.float64)
    same = (values == reference) | (np.isnan(values) & np.isnan(reference))
    finite = np.isfinite(values) & np.isfinite(reference)
    error = np.abs(np.where(finite, values, 0.0) - np.where(finite, reference, 0.0)) / expectation.bound
    return np.where(same, 0.0, np.where(finite, np.minimum(error, HIGHEST), HIGHEST))


def heat_map(error: np.ndarray, worst: tuple[int, ...]) -> list[list[float]]:
    """Returns the slice over the last two axes with the worst element, reduced by block maxima."""
    slice_td = np.atleast_2d(error[worst[:-2]])
    for axis in (0, 1):
        size = slice_td.shape[axis]
        starts = np.unique(np.arange(min(size, CELLS)) * size // min(size, CELLS))
        slice_td = np.maximum.reduceat(slice_td, starts, axis=axis)
    return [[float(f"{value:.3g}") for value in row] for row in slice_td]
