"""Says where two arrays differ, at which rows of a batch, positions and features, and how."""

import numpy as np

from ...modules.nests import splits
from . import layouts

AXES = ("rows", "positions", "features")
CLOSE = 1e-4  # relative to the largest number: far above rounding, and below what shows

RUNS = 3  # of places one after the other that are said: more of them is where differences happen to be small
LITTLE = 0.01  # of a difference, which a relation leaves at most


def places(left: np.ndarray, right: np.ndarray) -> list[str]:
    """Returns what differs alone along each axis of `b t d`, such as "positions 1 to 6 of 7"; nothing along an axis all of which does."""
    left, right = _shaped(left, right)
    if left.shape != right.shape or left.ndim != len(AXES) or left.dtype.kind != "f":
        return []
    wrong = ~(np.abs(left - right) <= CLOSE * np.abs(left).max(initial=0.0))
    found = []
    for axis, name in enumerate(AXES):
        hit = np.flatnonzero(wrong.any(axis=tuple(other for other in range(len(AXES)) if other != axis)))
        runs = np.split(hit, np.flatnonzero(np.diff(hit) > 1) + 1)
        if 0 < len(hit) < left.shape[axis] and len(runs) <= RUNS:
            ranges = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
            found.append(f"{name} {', '.join(ranges)} of {left.shape[axis]}")
    return found


def relation(left: np.ndarray, right: np.ndarray) -> str:
    """Returns what the left is in terms of the right: its transpose, a multiple, the same vector added everywhere, or the features in
    another order.
    """
    order = layouts.transposition(left, right)
    if order and layouts.agree(left, right.transpose(order)):
        return f"the left is the right with its axes transposed to {' '.join(map(str, order))}"
    left, right = _shaped(left, right)
    if left.shape != right.shape or left.ndim < 2 or left.dtype.kind != "f" or not right.any():
        return ""
    one, other = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (left, right))
    much = LITTLE * float(np.abs(one - other).max())  # what is explained leaves little
    factor = float((one * other).sum() / (other * other).sum())
    if float(np.abs(one - factor * other).max()) <= much:
        return f"the left is {factor:.6g} times the right"
    if len(one) > 1 and float(np.abs((one - other) - (one - other)[0]).max()) <= much:
        return "the left is the right plus one vector, the same at every position, as a bias is"
    sorted_one, sorted_other = (rows[:, np.argsort(rows[0], kind="stable")] for rows in (one, other))
    if len(one) > 1 and float(np.abs(sorted_one - sorted_other).max()) <= much:
        return "the left has the features of the right in another order"
    return ""


def _shaped(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in the shape of the one that has fewer axes, if these are joined there."""
    if left.shape != right.shape and splits(left.shape, right.shape):
        shape = min(left.shape, right.shape, key=len)
        return left.reshape(shape), right.reshape(shape)
    return left, right
