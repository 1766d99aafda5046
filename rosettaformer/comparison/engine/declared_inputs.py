"""Inputs of a comparison: random ones declared by name, axes and dtype, or arrays from a file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference_numpy.suggestions import nearest

from ...common import archives

DTYPES = ("float64", "float32", "float16", "int64", "int32", "bool")
FORM = "NAME: AXIS=SIZE ... DTYPE, such as 'image: b=2 h=16 w=16 c=3 float32' or 'tokens: b=2 t=7 int64 <100'"
LARGEST = 1 << 28  # maximum number of elements
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Input:
    """A declared input.

    sizes: empty if the values come from a file. below: exclusive upper bound of integers.
    """

    name: str
    axes: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    dtype: str = "float32"
    below: int = 0


def declaration(text: str) -> Input:
    """Parses a declaration: `image: b=2 h=16 w=16 c=3 float32`, or `image: b h w c` for values from
    a file.

    Raises ValueError on invalid syntax.
    """
    name, colon, rest = text.partition(":")
    name, words = name.strip(), rest.split()
    axes, sizes, dtype, below = [], [], "", 0
    if not colon or not _WORD.fullmatch(name):
        raise ValueError(f"--input must be {FORM}; got {text!r:.100}")
    for word in words:
        axis, equals, size = word.partition("=")
        if word in DTYPES:
            dtype = word
        elif re.fullmatch(r"<\d+", word):
            below = int(word[1:])
        elif equals and _WORD.fullmatch(axis) and size.isdigit() and int(size) > 0:
            axes.append(axis)
            sizes.append(int(size))
        elif not equals and _WORD.fullmatch(word) and not word.startswith(("float", "int", "uint", "bool")):
            axes.append(word)
        else:
            raise ValueError(f"{name}: {word!r} is not an axis, a size or a dtype ({', '.join(DTYPES)}){nearest(word, DTYPES)}; use {FORM}")
    _check(name, axes, sizes, dtype, below)
    return Input(name, tuple(axes), tuple(sizes), dtype or "float32", below)


def _check(name: str, axes: Sequence[str], sizes: Sequence[int], dtype: str, below: int) -> None:
    if len(set(axes)) != len(axes):
        raise ValueError(f"{name}: axes must be unique; got {' '.join(axes)}")
    if sizes and len(sizes) != len(axes):
        raise ValueError(f"{name}: all axes or none must have a size; got {len(sizes)} sizes for axes {' '.join(axes)}")
    if sizes and not dtype:
        raise ValueError(f"{name}: add a dtype: {', '.join(DTYPES)}")
    if dtype.startswith("int") and sizes and not below:
        raise ValueError(f"{name}: integers need a range, such as '{name}: b=2 t=7 {dtype} <100'")
    if np.prod(sizes, dtype=object) > LARGEST:
        raise ValueError(f"{name}: must have at most {LARGEST} elements; got {' x '.join(map(str, sizes))}")


def axes_of(text: str) -> tuple[str, tuple[str, ...]]:
    """Parses the axis order of an input on one side: `image: b c h w`."""
    found = declaration(text)
    if found.sizes or not found.axes:
        raise ValueError(f"--axes must be SIDE NAME: AXIS AXIS ..., such as 'left image: b c h w'; got {text!r:.100}")
    return found.name, found.axes


def read(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a .npz file by name.

    Raises ValueError on an invalid file or NaN or infinity.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    try:
        archives.require_at_most(path, 8 * LARGEST)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: np.asarray(archive[name], order="C") for name in archive.files}
    except Exception as error:
        raise ValueError(f"{path} is not a valid .npz file ({type(error).__name__}: {error}); write it with numpy.savez") from None
    return checked(arrays, str(path))


def checked(arrays: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Returns the arrays. Raises ValueError unless all are finite numbers."""
    problems = []
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            problems.append(f"{name} must be numeric; got {array.dtype}")
        elif array.dtype.kind == "f" and (count := int((~np.isfinite(array)).sum())):
            problems.append(f"{name} must be finite; {count} of {array.size} elements are NaN or infinite")
    if not arrays:
        problems.append("there are no arrays")
    if problems:
        raise ValueError(f"{where}: " + "; ".join(problems))
    return dict(arrays)


def make(inputs: Sequence[Input], given: Mapping[str, np.ndarray], seed: int) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
    """Returns the given arrays and random ones as declared, by name, with their axes (() if
    undeclared).

    Floats are standard normal. Raises ValueError on declarations that do not match the arrays.
    """
    rng = np.random.default_rng(seed)
    problems: list[str] = []
    found: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {name: (array, ()) for name, array in given.items()}
    for declared in inputs:
        if declared.name in given:
            if declared.sizes:
                problems.append(f"{declared.name} is in the file; declare its axes without sizes")
            elif len(declared.axes) != given[declared.name].ndim:
                problems.append(f"{declared.name} has shape {given[declared.name].shape}, but axes {' '.join(declared.axes)}")
            found[declared.name] = (given[declared.name], declared.axes)
        elif len(declared.sizes) != len(declared.axes) or not declared.dtype:
            problems.append(f"{declared.name} is not in a file{nearest(declared.name, given)}; declare its sizes: {FORM}")
        else:
            found[declared.name] = (_random(declared, rng), declared.axes)
    if problems:
        raise ValueError("; ".join(problems))
    return found


def _random(declared: Input, rng: np.random.Generator) -> np.ndarray:
    if declared.dtype == "bool":
        return rng.random(declared.sizes) < 0.75
    if declared.dtype.startswith("int"):
        return rng.integers(0, declared.below, declared.sizes).astype(declared.dtype)
    return rng.standard_normal(declared.sizes).astype(np.float32).astype(declared.dtype)
