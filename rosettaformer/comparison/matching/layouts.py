"""Decides numerically whether two arrays are compared as they are or in the common order of axes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...common.modules.nests import splits
from .. import axes

NEARER = 0.5  # fraction of the other order's distance; unrelated arrays are equally far apart in both orders
CLOSE = 1e-4  # relative to the largest number: above accumulated rounding, far below a wrong order of axes
MOST = 5  # maximum number of axes: 120 orders
Call = Mapping[str, Any]
Keys = tuple[tuple[str, int], tuple[str, int]]


def settle(runs: Mapping[str, Sequence[Any]], layers: Mapping[str, tuple[str, str]], ranks: Sequence[str], one_convention: bool) -> None:
    """Removes the tags of arrays that are compared as they are, in the inputs and outputs of all
    layers.

    Outputs of the models are only converted from channels first to channels last, and only if the
    sides have different conventions; any other order is a difference. runs: calls of both sides, by
    dtype. layers: the right's layer by the left's. one_convention: whether both sides have one
    convention.
    """
    calls = [{dtype: {(call["path"], call["index"]): call for call in runs[dtype][which][0]} for dtype in runs} for which in (0, 1)]
    for path, index in calls[0]["float32"]:
        keys = (path, index), (layers.get(path, ("", ""))[0], index)
        if path in layers and keys[1] in calls[1]["float32"]:
            for what in ("input", "output"):
                _settle(calls, keys, what, ranks, what == "output" and not path, one_convention)


def _settle(calls: Sequence[Mapping[str, Any]], keys: Keys, what: str, ranks: Sequence[str], given: bool, one_convention: bool) -> None:
    """given: whether the arrays are outputs of the models."""
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
    """Returns whether the shapes are equal, or equal after splitting axes."""
    return tuple(one) == tuple(other) or splits(one, other)


def may_be_transposed(one: Sequence[int], other: Sequence[int]) -> bool:
    """Returns whether one shape is a permutation of the other."""
    return len(one) == len(other) <= MOST and sorted(one) == sorted(other)


def transposition(left: np.ndarray, right: np.ndarray) -> tuple[int, ...] | None:
    """Returns the transposition of the right that fits the left: one in which the numbers agree, or
    else the first with the left's shape.

    None if no transposition is needed or possible.
    """
    if not may_be_transposed(left.shape, right.shape):
        return None
    own = tuple(range(left.ndim))
    orders = [order for order in itertools.permutations(own) if tuple(right.shape[axis] for axis in order) == left.shape]
    found = next((order for order in orders if agree(left, right.transpose(order))), orders[0])
    return None if found == own else found


def agree(left: np.ndarray, right: np.ndarray) -> bool:
    """Returns whether the arrays are equal up to rounding."""
    one, other = left.astype(np.float64), right.astype(np.float64)
    largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=0, atol=CLOSE * largest, equal_nan=True))
