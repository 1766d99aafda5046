"""Matches variables by equal values: unchanged, transposed, with split axes, or fused."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ...common.modules.nests import splits
from .rename_table import Rename, Row

Arrays = Mapping[str, np.ndarray]
LETTERS = "ABCDEFGHIJKL"


def by_value(left: Arrays, right: Arrays) -> Rename:
    """Returns the table of variables with equal values; constant variables are skipped."""
    mine, others = dict[bytes, list[str]](), dict[bytes, list[str]]()
    for arrays, by_numbers in ((left, mine), (right, others)):
        for name, array in arrays.items():
            if _shows(array):
                by_numbers.setdefault(np.sort(array.astype(np.float32), axis=None).tobytes(), []).append(name)
    rows, parts = dict[str, Row](), dict[str, list[tuple[str, int, int]]]()
    for numbers, names in mine.items():
        if len(names) == len(others.get(numbers, [])) == 1 and (row := _row(left[names[0]], right[others[numbers][0]], others[numbers][0])):
            rows[names[0]] = row
    taken = {row.name for row in rows.values()}
    spare = {name: array for name, array in right.items() if name not in taken and _shows(array)}
    for name, array in left.items():
        if name not in rows and _shows(array):
            places = [(other, _place(array, one)) for other, one in spare.items()]
            held = sorted([(other, *place) for other, place in places if place], key=lambda found: found[1])
            ends = [0, *(stop for _, _, stop in held)]
            if len(held) > 1 and [start for _, start, _ in held] == ends[:-1] and ends[-1] in array.shape:
                parts[name] = held
    return Rename(rows, parts)


def _shows(array: np.ndarray) -> bool:
    return array.size > 1 and bool((array != array.flat[0]).any())


def _row(one: np.ndarray, other: np.ndarray, name: str) -> Row | None:
    """Returns the axes that convert one array to the other; None if there are none."""
    if one.shape == other.shape and np.array_equal(one, other):
        axes = " ".join(LETTERS[: one.ndim])
        return Row(name, axes, axes, _sizes(one.shape))
    for order in itertools.permutations(range(one.ndim)):
        turned = one.transpose(order)
        if splits(turned.shape, other.shape) and np.array_equal(turned.reshape(other.shape), other):
            products = {1, *np.cumprod(turned.shape).tolist(), *np.cumprod(other.shape).tolist()}
            # sizes of the common factors of both shapes
            atoms = [after // before for before, after in itertools.pairwise(sorted(products))]
            mine, theirs = (_grouped(shape, atoms) for shape in (turned.shape, other.shape))
            return Row(name, " ".join(mine[order.index(axis)] for axis in range(one.ndim)), " ".join(theirs), _sizes(atoms))
    return None


def _sizes(atoms: Sequence[int]) -> dict[str, int]:
    return dict(zip(LETTERS, atoms, strict=False))


def _grouped(shape: Sequence[int], atoms: Sequence[int]) -> list[str]:
    """Returns each axis as the letters of its factors."""
    waiting, found = iter(zip(LETTERS, atoms, strict=False)), []
    for size in shape:
        letters, held = [], 1
        while held < size:
            letter, atom = next(waiting)
            letters.append(letter)
            held *= atom
        found.append("1" if not letters else letters[0] if len(letters) == 1 else f"({' '.join(letters)})")
    return found


def _place(whole: np.ndarray, part: np.ndarray) -> tuple[int, int] | None:
    """Returns the range of the part along one axis of the whole; None if it is not there."""
    if part.size >= whole.size or whole.ndim > 2:
        return None
    for axis in range(whole.ndim):
        lines = np.moveaxis(whole, axis, 0).reshape(whole.shape[axis], -1)
        width = lines.shape[1]
        if part.size % width:
            continue
        count = part.size // width
        for candidate in (part.reshape(count, width), part.reshape(width, count).T, part.reshape(count, width, order="F")):
            for start in np.flatnonzero((lines == candidate[0]).all(axis=1)):
                if np.array_equal(lines[start : start + count], candidate):
                    return int(start), int(start) + count
    return None
