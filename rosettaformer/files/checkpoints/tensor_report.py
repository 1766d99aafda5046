"""Reports the state of every tensor of a checkpoint; equal layers and experts share a line."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import Checkpoint
from .hugging_face import Examination

STATES = ("matched", "tied", "missing", "unexpected", "shape", "dtype", "left out", "buffer")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class Line(NamedTuple):
    """A tensor, or the same tensor of several layers and experts.

    name: with a range of layers, `h.{0..11}.ln_1.weight`. state: one of STATES. shape, dtype: as
    stored, or as expected if the tensor is missing. canonical: the parameters that it holds.
    layers: how many tensors the line covers.
    """

    name: str
    state: str
    shape: tuple[int, ...]
    dtype: str
    canonical: tuple[str, ...] = ()
    layers: int = 1


def of_checkpoint(checkpoint: Checkpoint) -> list[Line]:
    """Reports a canonical checkpoint."""
    return [*fold(Line(name, "matched", array.shape, str(array.dtype), (name,)) for name, array in checkpoint.parameters.items())]


def of_examination(found: Examination) -> list[Line]:
    """Reports a Hugging Face folder; tensors without problems come first."""
    lines = []
    for name, state in found.states.items():
        array, native = found.tensors.get(name), found.natives.get(name)
        shape = array.shape if array is not None else native.shape if native else ()
        canonical = tuple(part.name for part, _, _ in native.parts) if native else ()
        lines.append(Line(name, state, shape, "" if array is None else str(array.dtype), canonical))
    return sorted(fold(lines), key=lambda line: STATES.index(line.state))


def counts(lines: Iterable[Line]) -> dict[str, int]:
    """Counts the tensors in each state."""
    found: Counter[str] = Counter()
    for line in lines:
        found[line.state] += line.layers
    return {state: found[state] for state in STATES}


def fold(lines: Iterable[Line]) -> Iterator[Line]:
    """Merges lines that differ only in the number of an expert, then in that of the layer."""
    return _folded(_folded(lines, 1), 0)


def _folded(lines: Iterable[Line], place: int) -> Iterator[Line]:
    """Merges lines that differ only in the number at this place of the name."""
    groups: dict[Line, list[str]] = {}
    for line in lines:
        numbers = _NUMBER.findall(line.name)
        alike = line._replace(name=_starred(line.name, place), canonical=tuple(_starred(name, place) for name in line.canonical))
        groups.setdefault(alike, []).append(numbers[place] if len(numbers) > place else "")
    for line, found in groups.items():
        text = _numbers(sorted({int(number) for number in found if number}))
        canonical = tuple(name.replace("*", text) for name in line.canonical)
        yield line._replace(name=line.name.replace("*", text), canonical=canonical, layers=len(found) * line.layers)


def _starred(name: str, place: int) -> str:
    """Replaces the number at this place."""
    found = [*_NUMBER.finditer(name)][place : place + 1]
    return f"{name[: found[0].start()]}*{name[found[0].end() :]}" if found else name


def _numbers(numbers: list[int]) -> str:
    if len(numbers) > 1 and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    return str(numbers[0]) if len(numbers) == 1 else "{" + ",".join(map(str, numbers)) + "}"
