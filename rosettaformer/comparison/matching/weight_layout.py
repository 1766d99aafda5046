"""Converts tensors from the layout of one side to the layout of the other."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from reference_numpy import layout

_GROUP = re.compile(r"\([^)]*\)|-?\w")


def plain_axes(axes: str) -> str:
    """Returns the axes without the signs of reversed axes."""
    return axes.replace("-", "")


def carried(array: np.ndarray, from_axes: str, to_axes: str, sizes: Mapping[str, int]) -> np.ndarray:
    """Returns the array in the other layout, unchanged without known axes; `-y` is a reversed axis."""
    if not from_axes or not to_axes:
        return array
    array = _reversed(array, from_axes)
    array = layout.relayout(array, plain_axes(from_axes), plain_axes(to_axes), sizes)
    return np.asarray(_reversed(array, to_axes), order="C")


def _reversed(array: np.ndarray, axes: str) -> np.ndarray:
    flipped = [index for index, axis in enumerate(_GROUP.findall(axes)) if axis.startswith("-")]
    return np.flip(array, tuple(flipped)) if flipped else array


def solved(left: tuple[str, Sequence[int]], right: tuple[str, Sequence[int]], known: Mapping[str, int]) -> tuple[str, str, dict[str, int]]:
    """Returns the axes of both sides and the size of every letter.

    known: sizes that the shapes do not determine.

    A group common to both sides becomes one letter. Raises ValueError on incompatible shapes and
    unknown sizes.
    """
    axes = [left[0], right[0]]
    for letter, group in zip("ABCD", [group for group in _GROUP.findall(axes[0]) if "(" in group and group in axes[1]], strict=False):
        axes = [text.replace(group, letter) for text in axes]
    pairs = []
    for text, shape in zip(axes, (left[1], right[1]), strict=True):
        groups = [group.strip("()").split() for group in _GROUP.findall(plain_axes(text))]
        if len(groups) != len(shape):
            raise ValueError(f"axes {text!r} do not match the shape {tuple(shape)}")
        pairs += list(zip(groups, shape, strict=True))
    sizes: dict[str, int] = {"1": 1}
    for _ in range(len(pairs) + 1):
        for group, size in pairs:
            unknown = [letter for letter in group if letter not in sizes]
            have = math.prod(sizes.get(letter, 1) for letter in group)
            if len(unknown) == 1 and size % have == 0:
                sizes[unknown[0]] = size // have
            elif not unknown and have != size:
                raise ValueError(f"shapes {tuple(left[1])} ({left[0]}) and {tuple(right[1])} ({right[0]}) do not match")
        for letter, size in known.items():
            if any(letter in group for group, _ in pairs) and len([1 for group, _ in pairs for one in group if one not in sizes]):
                sizes.setdefault(letter, size)
    if missing := sorted({letter for group, _ in pairs for letter in group if letter not in sizes}):
        raise ValueError(f"the sizes of {', '.join(missing)} in {left[0]!r} and {right[0]!r} are unknown; add them to the row in --rename")
    return axes[0], axes[1], {letter: size for letter, size in sizes.items() if letter != "1"}
