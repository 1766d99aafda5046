"""The beams of one row: which live on, which are finished, and when no live one can win (BEAM)."""

from typing import NamedTuple

import numpy as np

from .arrays import Array
from .strategy import Strategy

__all__ = ["Beam", "Row", "best", "keep", "length_penalty", "stops"]


class Beam(NamedTuple):
    """A live beam: its log p, its tokens, and the live beam that it continues (parent).

    A finished hypothesis: its tokens with the end token, and its score `log p / length_penalty`.
    """

    score: float
    tokens: tuple[int, ...]
    parent: int = 0


class Row:
    """The live beams of one row, all of one length, and the best finished hypotheses."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.done = strategy, False
        self.live = [Beam(0.0, ())]
        self.kept: list[Beam] = []

    def advance(self, scores_wv: Array) -> None:
        """Append one token, given its scores for each live beam."""
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
    """The continuations of largest log p first; of equals the lower token, then the better beam."""
    by_token = total_wv.T.ravel()  # entry id * w + beam: a stable sort prefers the lower id
    chosen = []
    for index in np.argsort(-by_token, kind="stable")[:count]:
        id_, parent = divmod(int(index), len(live))
        if np.isfinite(by_token[index]):
            chosen.append(Beam(by_token[index], (*live[parent].tokens, id_), parent))
    return chosen


def keep(kept: list[Beam], live: list[Beam], ended_w: Array, strategy: Strategy) -> list[Beam]:
    """The beam_size best of the finished hypotheses and of the live beams that end now; of equal
    scores the lower tokens come first.
    """
    ended = [
        Beam(score, (*beam.tokens, strategy.end_id))
        for beam, score in zip(live, ended_w, strict=True)
        if np.isfinite(score)
    ]
    return sorted(kept + ended, key=lambda beam: (-beam.score, beam.tokens))[: strategy.beam_size]


def stops(live: list[Beam], kept: list[Beam], strategy: Strategy) -> bool:
    """Whether no live beam can beat the worst hypothesis.

    log p only falls, and no penalty is larger than that of the longest answer.
    """
    if len(kept) < strategy.beam_size:
        return False
    highest = live[0].score / length_penalty(strategy.max_new_tokens, strategy.alpha)
    return strategy.early_stop or bool(highest <= kept[-1].score)


def length_penalty(length: int, alpha: float) -> float:
    """`((5 + n) / 6)^alpha`, by which `log p` of n tokens is divided (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** alpha
