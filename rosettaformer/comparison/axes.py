"""Named axes of activations, for sides that order their axes differently.

The tag of an array lists, for each of its axes, the named axes that it combines and their sizes:
`[[["b", 2]], [["c", 8], ["h", 7], ["w", 7]]]` is an image flattened with channels first. The common
order is that of the declared inputs, with the channels, c, last.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Tag = Sequence[Sequence[Sequence[Any]]]
CHANNELS = "c"


def ordered(axes: Sequence[str], convention: str) -> list[str]:
    """Returns the axes with channels after the batch ("first") or at the end ("last")."""
    if CHANNELS not in axes or len(axes) < 3 or not convention:
        return list(axes)
    others = [axis for axis in axes if axis != CHANNELS]
    return [others[0], CHANNELS, *others[1:]] if convention == "first" else [*others, CHANNELS]


def common(axes: Sequence[str]) -> list[str]:
    """Returns the axes in the common order."""
    return ordered(axes, "last")


def permutation(from_axes: Sequence[str], to_axes: Sequence[str]) -> list[int]:
    """Returns the permutation from one order of axes to another.

    Raises ValueError on different axes.
    """
    if sorted(from_axes) != sorted(to_axes) or len(set(from_axes)) != len(from_axes):
        raise ValueError(f"axes must be unique, and the same on both sides; got {' '.join(from_axes)!r} and {' '.join(to_axes)!r}")
    return [list(from_axes).index(axis) for axis in to_axes]


def to_common(array: np.ndarray, tag: Tag | None, ranks: Sequence[str]) -> np.ndarray:
    """Returns the array in the common order of axes. ranks: the declared axes in that order."""
    if tag is None or array.shape != tuple(math.prod(size for _, size in group) for group in tag):
        return array
    return _regrouped(array, tag, _sorted(tag, ranks))  # type: ignore[arg-type]


def from_common(array: np.ndarray, tag: Tag | None, ranks: Sequence[str]) -> np.ndarray:
    """Returns an array in the common order with the axis order of the tag instead."""
    if tag is None:
        return array
    target = _sorted(tag, ranks)
    if array.shape != tuple(math.prod(size for _, size in group) for group in target):
        return array
    return _regrouped(array, target, tag)


def moves_channels(tag: Tag, ranks: Sequence[str]) -> bool:
    """Returns whether the tag and the common order differ only in the position of the channels."""
    target = _sorted(tag, ranks)
    rest = [[[name for name, _ in group if name != CHANNELS] for group in groups] for groups in (tag, target)]
    named = [[name for group in groups for name, _ in group] for groups in (tag, target)]
    return named[0] != named[1] and [*filter(None, rest[0])] == [*filter(None, rest[1])]


def _sorted(tag: Tag, ranks: Sequence[str]) -> list[list[tuple[str, int]]]:
    def key(atom: Any) -> tuple[int, int]:
        name = str(atom[0])
        return (2, 0) if name == CHANNELS else (0, list(ranks).index(name)) if name in ranks else (1, 0)

    groups = [sorted(((str(name), int(size)) for name, size in group), key=key) for group in tag]
    return sorted(groups, key=lambda group: key(group[0]) if group else (1, 0))


def _regrouped(array: np.ndarray, source: Any, target: Any) -> np.ndarray:
    """Returns the array rearranged from one tag to another with the same named axes."""
    atoms = [tuple(atom) for group in source for atom in group]
    wanted = [tuple(atom) for group in target for atom in group]
    order: list[int] = []
    for atom in wanted:
        order.append(next(index for index, other in enumerate(atoms) if other == atom and index not in order))
    unfolded = array.reshape([size for _, size in atoms]).transpose(order)
    return np.ascontiguousarray(unfolded.reshape([math.prod(size for _, size in group) for group in target]))
