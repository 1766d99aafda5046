"""Decides by numbers in which order of axes two arrays are compared: as they are, or in the common order that the tags of a side give."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...common.modules.nests import splits
from .. import axes

NEARER = 0.5  # of the other order's distance: two arrays that have nothing in common are as far apart in either order
CLOSE = 1e-4  # relative to the largest number: above what rounding adds up to, and far below what another order of axes gives
MOST = 5  # axes, which have 120 orders
Call = Mapping[str, Any]
Keys = tuple[tuple[str, int], tuple[str, int]]


def settle(runs: Mapping[str, Sequence[Any]], layers: Mapping[str, tuple[str, str]], ranks: Sequence[str], one_convention: bool) -> None:
    """Takes the tags off arrays that are to be compared as they are, in the inputs and outputs of all layers.

    What the models give is turned only from channels first to channels last, and only if both sides are given their channels so: another
    order is a difference. runs: by dtype the calls of both sides. layers: the right's layer by the left's. one_convention: whether both
    sides have their channels at the same place.
    """
    calls = [{dtype: {(call["path"], call["index"]): call for call in runs[dtype][which][0]} for dtype in runs} for which in (0, 1)]
    for path, index in calls[0]["float32"]:
        keys = (path, index), (layers.get(path, ("", ""))[0], index)
        if path in layers and keys[1] in calls[1]["float32"]:
            for what in ("input", "output"):
                _settle(calls, keys, what, ranks, what == "output" and not path, one_convention)


def _settle(calls: Sequence[Mapping[str, Any]], keys: Keys, what: str, ranks: Sequence[str], given: bool, one_convention: bool) -> None:
    """given: whether it is what the models give."""
    pair = [side["float32"][key] for side, key in zip(calls, keys, strict=True)]
    tags = [call[f"{what}_axes"] for call in pair]
    for number, two in enumerate(zip(*tags, strict=False)):
        arrays = [call[f"{what}s"][number] for call in pair]
        strict = given and (one_convention or not all(axes.moves_channels(tag, ranks) for tag in two if tag))
        if any(two) and (strict or _nearer_as_they_are(arrays, two, ranks)):
            for side, key in zip(calls, keys, strict=True):
                for several in side.values():
                    if key in several:
                        several[key][f"{what}_axes"][number] = None


def _nearer_as_they_are(arrays: Sequence[np.ndarray], tags: Sequence[axes.Tag | None], ranks: Sequence[str]) -> bool:
    turned = [axes.to_common(array, tag, ranks) for array, tag in zip(arrays, tags, strict=True)]
    if not fit(arrays[0].shape, arrays[1].shape):
        return False
    return not fit(turned[0].shape, turned[1].shape) or _distance(*arrays) < NEARER * _distance(*turned)


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    one, other = (np.nan_to_num(array.ravel().astype(np.float64), posinf=0.0, neginf=0.0) for array in (left, right))
    return float(np.linalg.norm(one - other))


def fit(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether arrays of these shapes hold their elements in one order, whatever axes are split."""
    return tuple(one) == tuple(other) or splits(one, other)


def may_be_transposed(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one shape is the other in another order."""
    return len(one) == len(other) <= MOST and sorted(one) == sorted(other)


def transposition(left: np.ndarray, right: np.ndarray) -> tuple[int, ...] | None:
    """Returns the order of the right's axes that gives the left: of those that give its shape the first in which the numbers agree, or the
    first. None if the right's own order gives its shape, and no other its numbers.
    """
    if not may_be_transposed(left.shape, right.shape):
        return None
    own = tuple(range(left.ndim))
    orders = [order for order in itertools.permutations(own) if tuple(right.shape[axis] for axis in order) == left.shape]
    found = next((order for order in orders if agree(left, right.transpose(order))), orders[0])
    return None if found == own else found


def agree(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether the numbers are the same but for rounding."""
    one, other = left.astype(np.float64), right.astype(np.float64)
    largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=0, atol=CLOSE * largest, equal_nan=True))
