"""Answers of a trained model to many sources at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from . import search
from .backends import Trainer
from .search import Hypothesis
from .tokens import PADDING

__all__ = ["Decoding", "answer"]


@dataclass(frozen=True)
class Decoding:
    """How answers are searched. limits: padded source length -> tokens of an answer at most. width: of the beam; 1 is greedy search.

    rows: of every call of the model, so that a compiled backend sees few shapes.
    """

    limits: Mapping[int, int]
    width: int = 1
    alpha: float = 0.6
    rows: int = 64

    def limit(self, length: int) -> int:
        """The limit for sources of that padded length; of the nearest shorter length, where training saw none."""
        known = [size for size in self.limits if size <= length] or [min(self.limits)]
        return self.limits[max(known)]


def answer(trainer: Trainer, sources: Sequence[Sequence[int]], decoding: Decoding) -> list[Hypothesis]:
    """The best answer to each source, in the order of the sources."""
    found: dict[int, Hypothesis] = {}
    count = max(decoding.rows // decoding.width, 1)
    for length, indexes in _groups(sources, count):
        source = _rows([sources[index] for index in indexes], count, length)
        found |= zip(indexes, _search(trainer, source, decoding, decoding.limit(length)), strict=False)
    return [found[index] for index in range(len(sources))]


def _search(trainer: Trainer, source: np.ndarray, decoding: Decoding, limit: int) -> list[Hypothesis]:
    if decoding.width == 1:
        return search.greedy(trainer, source, limit)
    kept = search.beam(trainer, source, decoding.width, decoding.alpha, limit)
    return [hypotheses[0] if hypotheses else Hypothesis((), 0.0) for hypotheses in kept]


def _groups(sources: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, list[int]]]:
    """(padded length, indexes of at most `count` sources of that length), the shorter ones first."""
    by_length: dict[int, list[int]] = {}
    for index in sorted(range(len(sources)), key=lambda index: len(sources[index])):
        by_length.setdefault(search.padded_length(len(sources[index])), []).append(index)
    for length, indexes in by_length.items():
        yield from ((length, indexes[start : start + count]) for start in range(0, len(indexes), count))


def _rows(sources: Sequence[Sequence[int]], count: int, length: int) -> np.ndarray:
    """The sources as `count` rows of that length; rows without a source are padding throughout."""
    result = np.full((count, length), PADDING, np.int32)
    for row, ids in zip(result, sources, strict=False):
        row[: len(ids)] = ids
    return result
