"""Says where two arrays differ: at which rows of a batch, positions and features."""

from collections.abc import Sequence

import numpy as np

from ...modules.nests import splits

AXES = ("rows", "positions", "features")
CLOSE = 1e-4  # relative to the largest number: far above rounding, and below what shows


def places(left: np.ndarray, right: np.ndarray) -> list[str]:
    """Returns what differs alone along each axis of `b t d`, such as "positions 1 to 6 of 7"; nothing along an axis all of which does."""
    if left.shape != right.shape and splits(left.shape, right.shape):
        left, right = sorted((left, right), key=lambda array: array.ndim)
        right = right.reshape(left.shape)
    if left.shape != right.shape or left.ndim != len(AXES) or left.dtype.kind != "f":
        return []
    wrong = ~(np.abs(left - right) <= CLOSE * np.abs(left).max(initial=0.0))
    found = []
    for axis, name in enumerate(AXES):
        hit = np.flatnonzero(wrong.any(axis=tuple(other for other in range(len(AXES)) if other != axis)))
        if 0 < len(hit) < left.shape[axis]:
            found.append(f"{name} {_ranges(hit)} of {left.shape[axis]}")
    return found


def _ranges(indices: Sequence[int] | np.ndarray) -> str:
    """Writes indices as ranges."""
    runs = np.split(np.asarray(indices), np.flatnonzero(np.diff(indices) > 1) + 1)
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
