"""The beams of one row: which are live, which are finished, and when to stop (BEAM)."""

from typing import NamedTuple

import numpy as np

from .arrays import Array
from .strategy import Strategy

__all__ = ["Beam", "Row", "best", "keep", "length_penalty", "stops"]


class Beam(NamedTuple):
    """A live beam or a finished hypothesis.

    score: log p of a live beam, `log p / length_penalty` of a finished one. tokens: include the end
    token once finished. parent: the live beam that this one continues.
    """

    score: float
    tokens: tuple[int, ...]
    parent: int = 0


class Row:
    """The live beams of one row, all of the same length, and its best finished hypotheses."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.done = strategy, False
        self.live = [Beam(0.0, ())]
        self.kept: list[Beam] = []

    def advance(self, scores_wv: Array) -> None:
        """Appends one token to every beam, given the scores of each live beam."""
        if self.done:
            return
        strategy, length = self.strategy, len(self.live[0].tokens) + 1
        before_w = np.array([beam.score for beam in self.live], scores_wv.dtype)
        total_wv = scores_wv[: len(self.live)] + before_w[:, None]
        penalty = total_wv.dtype.type(length_penalty(length, strategy.alpha))
        ended_w = total_wv[:, strategy.end_id] / penalty
        total_wv[:, strategy.end_id] = -np.inf
        self.kept = keep(self.kept, self.live, ended_w, strategy)
        self.live = best(self.live, total_wv, strategy.beam_size)
        over = length == strategy.max_new_tokens or not self.live
        self.done = over or stops(self.live, self.kept, strategy)


def best(live: list[Beam], total_wv: Array, count: int) -> list[Beam]:
    """Returns the continuations of largest log p, largest first; ties go to the lower token, then
    to the better beam.
    """
    by_token = total_wv.T.ravel()  # entry id * w + beam, so that a stable sort prefers the lower id
    chosen = []
    for index in np.argsort(-by_token, kind="stable")[:count]:
        id_, parent = divmod(int(index), len(live))
        if np.isfinite(by_token[index]):
            chosen.append(Beam(by_token[index], (*live[parent].tokens, id_), parent))
    return chosen


def keep(kept: list[Beam], live: list[Beam], ended_w: Array, strategy: Strategy) -> list[Beam]:
    """Returns the beam_size best of the finished hypotheses and of the live beams that end now;
    ties go to the lower tokens.
    """
    ended = [
        Beam(score, (*beam.tokens, strategy.end_id))
        for beam, score in zip(live, ended_w, strict=True)
        if np.isfinite(score)
    ]
    return sorted(kept + ended, key=lambda beam: (-beam.score, beam.tokens))[: strategy.beam_size]


def stops(live: list[Beam], kept: list[Beam], strategy: Strategy) -> bool:
    """Returns whether no live beam can still beat the worst finished hypothesis.

    log p only falls, and the longest answer has the largest penalty.
    """
    if len(kept) < strategy.beam_size:
        return False
    highest = live[0].score / length_penalty(strategy.max_new_tokens, strategy.alpha)
    return strategy.early_stop or bool(highest <= kept[-1].score)


def length_penalty(length: int, alpha: float) -> float:
    """`((5 + n) / 6)^alpha`, the divisor of log p for n tokens (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** alpha
