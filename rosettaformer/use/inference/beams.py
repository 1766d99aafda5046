"""The beam search of one prompt, as `transformers` 5 defines it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .options import GenerationOptions


class Beam(NamedTuple):
    """Tokens and their log p, or a hypothesis' score. parent: the live beam that it continues."""

    score: float
    tokens: tuple[int, ...]
    parent: int = 0


class Beams:
    """The live beams of one prompt, and its num_beams best hypotheses, best first.

    ends: whether a continuation ends with these tokens. A hypothesis of n tokens, including the end
    token, has the score `log p / n^length_penalty`. The search ends at `most` tokens, if no beam
    can continue, or if num_beams hypotheses are finished and
    - early_stopping is True; or
    - it is False, and the best live beam, if finished now, would not beat the worst of them; or
    - it is "never", and the best live beam would not, even if it reached `most` tokens without
      becoming less likely (for length_penalty > 0).
    Source: `_beam_search` in transformers/generation/utils.py, 5.23.
    """

    def __init__(self, options: GenerationOptions, most: int, ends: Callable[[tuple[int, ...]], bool]) -> None:
        self.options, self.most, self.ends, self.done = options, most, ends, False
        self.live, self.kept = [Beam(0.0, ())], list[Beam]()

    def advance(self, scores_wv: np.ndarray) -> None:
        """Advances by one token, given its scores for each live beam.

        Considers the max(2, 1 + e) num_beams most likely continuations, with e end tokens. Only the
        first num_beams of these may finish.
        """
        if self.done:
            return
        options, length = self.options, len(self.live[0].tokens) + 1
        total_wv = scores_wv[: len(self.live)] + np.array([beam.score for beam in self.live], scores_wv.dtype)[:, None]
        found = self._best(total_wv, max(2, 1 + len(options.eos_token_id)) * options.num_beams)
        if not found:  # no token may follow, so live beams end as they are
            found, length = self.live, length - 1
        ends = [length == self.most or found is self.live or self.ends(beam.tokens) for beam in found]
        penalty = total_wv.dtype.type(max(length, 1) ** options.length_penalty)
        finished = [Beam(beam.score / penalty, beam.tokens) for beam, end in zip(found, ends, strict=True) if end]
        finished = finished[: sum(ends[: options.num_beams])]
        self.kept = sorted(self.kept + finished, key=lambda beam: -beam.score)[: options.num_beams]
        self.live = [beam for beam, end in zip(found, ends, strict=True) if not end][: options.num_beams]
        self.done = not self.live or self._stops(length, total_wv.dtype)

    def _best(self, total_wv: np.ndarray, count: int) -> list[Beam]:
        """Returns the most likely continuations in order, without those of probability 0."""
        flat = total_wv.ravel()
        order = np.argpartition(-flat, count)[:count] if count < len(flat) else np.arange(len(flat))
        order = order[np.lexsort((order, -flat[order]))]
        pairs = [divmod(int(index), total_wv.shape[1]) for index in order if flat[index] > -np.inf]
        return [Beam(total_wv[parent, id_], (*self.live[parent].tokens, id_), parent) for parent, id_ in pairs]

    def _stops(self, length: int, dtype: np.dtype) -> bool:
        if len(self.kept) < self.options.num_beams:
            return False
        if self.options.early_stopping is True:
            return True
        penalty = self.options.length_penalty
        last = self.most if self.options.early_stopping == "never" and penalty > 0 else length
        return bool(self.live[0].score / dtype.type(last**penalty) <= self.kept[-1].score)
