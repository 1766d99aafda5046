"""Where an output is wrong: the error of every element in units of what passes."""

import numpy as np

from .reference.tolerance import Expectation

__all__ = ["heat_map", "relative_error"]

CELLS = 48  # along each side of a heat map
HIGHEST = 1e18  # the error of an element that is NaN or infinite where the truth is not, and the largest that is told apart


def relative_error(expectation: Expectation, got: np.ndarray) -> np.ndarray:
    """|error| / allowed of every element of an output that has the shape of the truth; of exact outputs 0 or the highest."""
    reference = expectation.reference
    if expectation.dtype.kind in "biu":
        return np.where(reference != got, HIGHEST, 0.0)
    values = got.astype(np.float64)
    same = (values == reference) | (np.isnan(values) & np.isnan(reference))
    finite = np.isfinite(values) & np.isfinite(reference)
    error = np.abs(np.where(finite, values, 0.0) - np.where(finite, reference, 0.0)) / expectation.bound
    return np.where(same, 0.0, np.where(finite, np.minimum(error, HIGHEST), HIGHEST))


def heat_map(error: np.ndarray, worst: tuple[int, ...]) -> list[list[float]]:
    """The slice over the last two axes in which the worst element lies; a larger one by the largest element of each block."""
    slice_td = np.atleast_2d(error[worst[:-2]])
    for axis in (0, 1):
        size = slice_td.shape[axis]
        starts = np.unique(np.arange(min(size, CELLS)) * size // min(size, CELLS))
        slice_td = np.maximum.reduceat(slice_td, starts, axis=axis)
    return [[float(f"{value:.3g}") for value in row] for row in slice_td]
