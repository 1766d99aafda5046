"""Greedy and beam search over a Trainer's `encode` and `decode`.

The decoder runs on the whole prefix at every step, padded on the right to one of few lengths, so that a compiled backend compiles one
program a length and not one a step. The padding changes nothing: the causal mask lets position i see positions up to i alone, so the
logits after the last real token come from real tokens only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .backends import Trainer
from .tokens import END, PADDING, START

__all__ = ["Hypothesis", "beam", "greedy", "padded_length"]

SHORTEST = 16


@dataclass(frozen=True)
class Hypothesis:
    """An answer: its ids from after START to before END; and `log p / penalty`, where END counts."""

    tokens: tuple[int, ...]
    score: float


def padded_length(length: int) -> int:
    """The smallest of 16, 32, 64, ... that is not shorter."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


def greedy(trainer: Trainer, source: np.ndarray, limit: int) -> list[Hypothesis]:
    """The answer of each row, of at most `limit` tokens: always the likeliest token, of equals the lower id. Its score is log p."""
    memory = trainer.encode(source)
    prefix = np.full((len(source), 1), START, np.int32)
    done, score = (source == PADDING).all(axis=1), np.zeros(len(source))
    while not done.all() and prefix.shape[1] <= limit:
        log_probabilities = _next(trainer, memory, source, prefix)
        token = np.where(done, PADDING, log_probabilities.argmax(axis=1))
        score += np.where(done, 0, log_probabilities.max(axis=1))
        prefix = np.concatenate([prefix, token[:, None].astype(np.int32)], axis=1)
        done |= token == END
    ids = (tuple(int(id_) for id_ in row if id_ not in (PADDING, START, END)) for row in prefix)
    return [Hypothesis(*found) for found in zip(ids, score.tolist(), strict=True)]


def beam(trainer: Trainer, source: np.ndarray, width: int, alpha: float, limit: int) -> list[list[Hypothesis]]:
    """The best `width` hypotheses of each row, best first, of at most `limit` tokens and END (BEAM).

    At each step every live beam ends once and continues once; the likeliest `width` continuations live on. Scores are
    `log p / ((5 + n) / 6)^alpha` (Wu et al. 2016, eq. 14); of equal ones the lower token ids come first. A row is done when no live beam
    can beat the worst hypothesis that is kept. Raises ValueError on a width below 1 and on a negative alpha, which no bound holds for.
    """
    if width < 1 or alpha < 0:
        raise ValueError(f"a beam must have a width of at least 1 and an alpha of at least 0; got {width} and {alpha}")
    repeated = np.repeat(source, width, axis=0)
    memory = trainer.encode(repeated)
    rows = [_Row(width, alpha, limit, done=bool((ids == PADDING).all())) for ids in source]
    for _ in range(limit + 1):
        if all(row.done for row in rows):
            break
        prefix = np.concatenate([row.prefix() for row in rows])
        for row, part in zip(rows, np.split(_next(trainer, memory, repeated, prefix), len(rows)), strict=True):
            row.advance(part)
    return [row.kept for row in rows]


class _Row:
    """The live beams of one row, all of one length, and its finished hypotheses."""

    def __init__(self, width: int, alpha: float, limit: int, done: bool) -> None:
        self.width, self.alpha, self.limit, self.done = width, alpha, limit, done
        self.length = 0
        self.live: list[tuple[float, tuple[int, ...]]] = [] if done else [(0.0, ())]
        self.kept: list[Hypothesis] = []

    def prefix(self) -> np.ndarray:
        """The decoder's input `width, 1 + length`; beams that are not there are START throughout."""
        prefix = np.full((self.width, 1 + self.length), START, np.int32)
        for index, (_, tokens) in enumerate(self.live):
            prefix[index, 1:] = tokens
        return prefix

    def advance(self, log_probabilities: np.ndarray) -> None:
        """One step, given log p of the next token `width v`."""
        self.length += 1
        if self.done:
            return
        total = log_probabilities[: len(self.live)] + np.array([log_p for log_p, _ in self.live])[:, None]
        ended = [Hypothesis(tokens, total[index, END] / self._penalty(self.length)) for index, (_, tokens) in enumerate(self.live)]
        self.kept = sorted(self.kept + ended, key=lambda found: (-found.score, found.tokens))[: self.width]
        total[:, END] = -np.inf
        self.live = [(float(total[index, id_]), (*self.live[index][1], id_)) for index, id_ in _best(total, self.width)]
        highest = max((log_p for log_p, _ in self.live), default=-np.inf) / self._penalty(self.limit + 1)
        self.done = self.length > self.limit or (len(self.kept) == self.width and highest <= self.kept[-1].score)
        if self.done:
            self.live = []

    def _penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha


def _best(total: np.ndarray, count: int) -> list[tuple[int, int]]:
    """(beam, token) of the largest finite entries, largest first; of equals the lower token, then the better beam."""
    flat = total.T.ravel()  # by token, then by beam
    worst = np.partition(flat, -count)[-count] if count < flat.size else -np.inf
    found = np.flatnonzero((flat >= worst) & np.isfinite(flat))
    chosen = found[np.argsort(-flat[found], kind="stable")][:count]
    return [(int(index % len(total)), int(index // len(total))) for index in chosen]


def _next(trainer: Trainer, memory: Any, source: np.ndarray, prefix: np.ndarray) -> np.ndarray:
    """log p `b v` of the token after each prefix, among those that an answer may hold."""
    length = prefix.shape[1]
    target = np.full((len(prefix), padded_length(length)), PADDING, np.int32)
    target[:, :length] = prefix
    logits = np.array(trainer.decode(memory, source, target)[:, length - 1], np.float64)
    logits[:, [PADDING, START]] = -np.inf
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
