"""Decodes batches of sources with a trained model, and scores the results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reference_numpy.strategy import Strategy

from .backends import Trainer
from .corpus import Buckets, Example, pad, padded_length, rows
from .tasks import Pair
from .tokens import END, PADDING, START, Tokens


@dataclass(frozen=True)
class Hypothesis:
    """A decoded target: ids between START and END, and `log p`, length-penalized by beam search."""

    tokens: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class Decoding:
    """Options of decoding.

    limits: padded source length -> most tokens to generate. width: beams; 1 is greedy search. rows:
    fixed batch size, so that a compiled backend sees few shapes.
    """

    limits: Mapping[int, int]
    width: int = 1
    alpha: float = 0.6
    rows: int = 64

    def limit(self, length: int) -> int:
        """Returns the limit for a padded source length, or the nearest shorter one."""
        known = [size for size in self.limits if size <= length] or [min(self.limits)]
        return self.limits[max(known)]


def answer(trainer: Trainer, sources: Sequence[Sequence[int]], decoding: Decoding) -> list[Hypothesis]:
    """Returns the best hypothesis for each source, in order."""
    found: dict[int, Hypothesis] = {}
    count = max(decoding.rows // decoding.width, 1)
    for length, indexes in _groups(sources, count):
        source = rows([sources[index] for index in indexes], count, length)
        found |= zip(indexes, _search(trainer, source, decoding, decoding.limit(length)), strict=False)
    return [found[index] for index in range(len(sources))]


def _search(trainer: Trainer, source: np.ndarray, decoding: Decoding, limit: int) -> list[Hypothesis]:
    strategy = Strategy(start_id=START, end_id=END, max_new_tokens=limit + 1, beam_size=decoding.width, alpha=decoding.alpha)
    if decoding.width == 1:
        found = trainer.greedy_search(source, strategy)
        tokens, scores = found["token_bn"], found["log_p_bn"].sum(axis=1)
    else:
        found = trainer.beam_search(source, strategy)
        tokens, scores = found["token_bwn"][:, 0], found["score_bw"][:, 0]
    texts = [tuple(id_ for id_ in ids if id_ not in (END, PADDING)) for ids in tokens.tolist()]
    return [Hypothesis(text, float(score)) for text, score in zip(texts, scores, strict=True)]


def _groups(sources: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, list[int]]]:
    """Yields padded lengths and at most `count` indexes of their sources, shorter ones first."""
    by_length: dict[int, list[int]] = {}
    for index in sorted(range(len(sources)), key=lambda index: len(sources[index])):
        by_length.setdefault(padded_length(len(sources[index])), []).append(index)
    for length, indexes in by_length.items():
        yield from ((length, indexes[start : start + count]) for start in range(0, len(indexes), count))


def loss_per_token(trainer: Trainer, buckets: Buckets, examples: Sequence[Example]) -> float:
    """Returns the mean -log p per target token, without smoothing and dropout; NaN if none fits."""
    parts = [trainer.loss(*pad(*group)) for group in buckets.groups(examples)]
    count = sum(count for _, count in parts)
    return sum(total for total, _ in parts) / count if count else math.nan


def scores(trainer: Trainer, tokens: Tokens, pairs: Sequence[Pair], decoding: Decoding) -> dict[str, float]:
    """Returns the percentage of sources that decode to exactly their target."""
    found = answer(trainer, tokens.source([source for source, _ in pairs]), decoding)
    right = sum(tokens.text(hypothesis.tokens) == target for hypothesis, (_, target) in zip(found, pairs, strict=True))
    return {"exact_match": 100 * right / len(pairs)}
