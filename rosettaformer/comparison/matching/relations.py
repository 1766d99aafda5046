"""Plain relations between two arrays: transposed, flipped, multiple, offset, permuted, low rank."""

import itertools
from dataclasses import dataclass

import numpy as np

from ...common.modules.nests import splits
from . import layouts

AXES = ("rows", "positions", "features")
CLOSE = 1e-4  # relative to the largest number: far above rounding, far below a difference
RUNS = 3  # maximum number of separate ranges; more are gaps where the difference happens to be small
LITTLE = 0.01  # fraction of a difference that a relation may leave unexplained
KERNEL = " kernel"
LARGEST = 1024  # maximum size of a matrix whose rank is computed


@dataclass(frozen=True)
class Relation:
    """A relation of two arrays, by its id and as a sentence; false if none is known."""

    id: str = ""
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)


NONE = Relation()


def places(left: np.ndarray, right: np.ndarray) -> list[str]:
    """Returns the differing ranges along each axis of `b t d`, such as "positions 1 to 6 of 7",
    unless all differ.
    """
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


def relation(left: np.ndarray, right: np.ndarray, noun: str = "") -> Relation:
    """Returns the plainest relation of the left to the right; NONE if none holds.

    noun: empty for activations; or what the weights are, such as " kernel", with inputs first and
    outputs last.
    """
    mine, others = f"the left{noun}", f"the right{noun}"
    order = layouts.transposition(left, right)
    if order and layouts.agree(left, right.transpose(order)):
        turned = "transposed" if left.ndim == 2 else f"with its axes transposed to {' '.join(map(str, order))}"
        return Relation("transposed", f"{mine} is {others}, {turned}")
    left, right = _shaped(left, right)
    if left.shape != right.shape or not left.ndim or left.dtype.kind != "f" or not (left.any() and right.any()):
        return NONE
    flips = itertools.chain.from_iterable(itertools.combinations(range(left.ndim), count) for count in range(1, left.ndim + 1))
    flipped = next((axes for axes in flips if noun and layouts.agree(left, np.flip(right, axes))), None)
    if flipped:
        return Relation("reversed", f"{mine} is {others}, reversed along axis {' and '.join(map(str, flipped))}")
    away = left.astype(np.float64) - right
    much = LITTLE * float(np.abs(away).max())  # the largest error that counts as explained
    if left.ndim == len(AXES) and len(left) > 1 and not noun and float(np.abs(away - away[:1]).max()) <= much < np.ptp(away, axis=1).max():
        return Relation("table", f"{mine} is {others} plus the same vectors for every input, like a table of positions")
    one, other = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (left, right))
    return _of_rows(one, other, much, noun) or (_low_rank(one, other, noun) if noun else NONE)


def _of_rows(one: np.ndarray, other: np.ndarray, much: float, noun: str) -> Relation:
    """Relates two matrices by factors, offsets and orders of their rows and columns."""
    mine, others = f"the left{noun}", f"the right{noun}"

    def holds(left: np.ndarray, right: np.ndarray) -> bool:
        return float(np.abs(left - right).max()) <= much

    factor = float((one * other).sum() / (other * other).sum())
    if abs(factor) > LITTLE and holds(one, factor * other):
        return Relation("multiple", f"{mine} is {factor:.6g} times {others}")
    if len(one) > 1 and holds(one - other, (one - other)[0]):
        return Relation("offset", f"{mine} is {others} plus the same vector at every {'input' if noun else 'position, like a bias'}")
    row, column = ("input", "output") if noun == KERNEL else ("row", "column") if noun else ("position", "feature")
    for name, first, second in ((column, one, other), (row, one.T, other.T)):
        order = np.argsort(second[0], kind="stable")[np.argsort(np.argsort(first[0], kind="stable"))]
        if (noun or (name == column and len(one) > 1)) and len(order) > 1 and holds(first, second[:, order]):
            return Relation("reordered", f"{mine} has the {name}s of {others} in a different order{_pattern(order)}")
        factors = (first * second).sum(0) / np.maximum((second * second).sum(0), np.finfo(float).tiny)
        if min(one.shape) > 1 and holds(first, second * factors):
            return Relation("multiples", f"every {name} of {mine} is {factors.min():.4g} to {factors.max():.4g} times that of {others}")
    return NONE


def _low_rank(one: np.ndarray, other: np.ndarray, noun: str) -> Relation:
    """Relates two kernels by a difference of at most a third of the full rank."""
    if max(one.shape) > 4 * LARGEST or min(one.shape) > LARGEST:
        return NONE
    sizes = np.linalg.svd(one - other, compute_uv=False)
    rounding = np.finfo(np.float32).eps * np.abs(one).max() * np.sqrt(one.shape).sum()
    rank = int((sizes > max(CLOSE * sizes[0], 4 * rounding)).sum())
    if not 0 < rank <= min(one.shape) // 3:
        return NONE
    return Relation("low rank", f"the left{noun} is the right{noun} plus a matrix of rank {rank}")


def _pattern(places: np.ndarray) -> str:
    """Describes a permutation of heads, or of axes within features."""
    count, whole = len(places), np.arange(len(places))
    for size in [size for size in range(count // 2, 1, -1) if count % size == 0]:
        blocks = places.reshape(-1, size)
        if (blocks == blocks[:, :1] + whole[:size]).all():
            return f": blocks of {size}, like heads"
        if np.array_equal(places, whole.reshape(size, -1).T.ravel()):
            return f": ({count // size} {size}) in place of ({size} {count // size})"
    for size in [size for size in range(2, count) if count % size == 0]:
        if (places.reshape(-1, size) - whole[::size, None] == places[:size]).all():
            return f", the same in every block of {size}"
    return ""


def _shaped(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns both in the shape of the one with fewer axes, if it only joins axes of the other."""
    if left.shape != right.shape and splits(left.shape, right.shape):
        shape = min(left.shape, right.shape, key=len)
        return left.reshape(shape), right.reshape(shape)
    return left, right
