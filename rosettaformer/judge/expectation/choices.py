"""The choices of a search: the next token, the live beams, the kept hypotheses, and when a row
stops.

They are recorded in one run of the reference and replayed in another, so that both score the same
tokens.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy.beams import Beam
from reference_numpy.strategy import Strategy

from .patching import Replaces, patched

Key = tuple[str, int, int]  # kind of choice (token, live, kept or stop), row, step
Choose = Callable[[np.ndarray, int], np.ndarray]  # (scores `b v`, step) -> tokens `b`


class Chooser:
    """Makes the reference's choices and records them with their scores.

    made: the id for a token, the tokens of each for beams and hypotheses, whether the row stops for
    a stop.
    """

    def __init__(self) -> None:
        self.made: dict[Key, Any] = {}
        self.scores: dict[Key, np.ndarray] = {}

    def token(self, key: Key, own: int, scores_bv: np.ndarray, again: Callable[[np.ndarray], np.ndarray]) -> int:
        """Returns the next token of a row. own: the reference's choice. again: by other scores."""
        return own

    def ranked(self, key: Key, ranking: list[Beam], count: int) -> list[Beam]:
        """Returns the `count` best beams or hypotheses. ranking: all, in the reference's order."""
        return ranking[:count]

    def stop(self, key: Key, live: list[Beam], kept: list[Beam], stops: Callable[[list[Beam], list[Beam]], bool]) -> bool:
        """Whether a row with these beams and hypotheses stops."""
        return stops(live, kept)


class Replay(Chooser):
    """Replays the choices of another run, with the reference's choices in between."""

    def __init__(self, made: Mapping[Key, Any]) -> None:
        super().__init__()
        self._earlier = made

    def token(self, key: Key, own: int, scores_bv: np.ndarray, again: Callable[[np.ndarray], np.ndarray]) -> int:
        return self._earlier.get(key, own)

    def ranked(self, key: Key, ranking: list[Beam], count: int) -> list[Beam]:
        if key not in self._earlier:
            return ranking[:count]
        pool = {beam.tokens: beam for beam in ranking}
        return [pool[tokens] for tokens in self._earlier[key] if tokens in pool]

    def stop(self, key: Key, live: list[Beam], kept: list[Beam], stops: Callable[[list[Beam], list[Beam]], bool]) -> bool:
        return self._earlier[key] if key in self._earlier else stops(live, kept)


def chosen_by(chooser: Chooser) -> contextlib.AbstractContextManager[None]:
    """Makes the reference's searches use the chooser's choices."""
    return patched({"decoding.one_by_one": functools.partial(_one_by_one, chooser), **_beams(chooser)})


def _one_by_one(chooser: Chooser, original: Callable[..., dict[str, np.ndarray]], model: Any, choose: Choose) -> dict[str, np.ndarray]:
    def tokens(scores_bv: np.ndarray, step: int) -> np.ndarray:
        own_b = choose(scores_bv, step)
        token_b = np.empty_like(own_b)
        for row, own in enumerate(own_b.tolist()):
            key = ("token", row, step)
            token_b[row] = chooser.made[key] = chooser.token(key, own, scores_bv, lambda other_bv: choose(other_bv, step))
            chooser.scores[key] = scores_bv[row].copy()
        return token_b

    return original(model, tokens)


def _beams(chooser: Chooser) -> Replaces:
    """Returns the functions that choose for a row of beams, and those that identify it."""
    rows, here = itertools.count(), [0, 0]  # the advancing row, and its step

    def numbered(original: Callable, row: Any, strategy: Strategy) -> None:
        original(row, strategy)
        row.number = next(rows)

    def advance(original: Callable, row: Any, scores_wv: np.ndarray) -> None:
        if not row.done:
            here[:] = row.number, len(row.live[0].tokens)
        original(row, scores_wv)

    @functools.cache  # making a strategy checks it, which would dominate the time of a step
    def of_size(strategy: Strategy, size: int) -> Strategy:
        return strategy.replace(beam_size=size)

    def chosen(kind: str, scores: np.ndarray, ranking: list[Beam], count: int) -> list[Beam]:
        key: Key = (kind, here[0], here[1])
        result = chooser.ranked(key, ranking, count)
        chooser.scores[key] = scores.ravel().copy()
        chooser.made[key] = [beam.tokens for beam in result]
        return result

    def best(original: Callable, live: list[Beam], total_wv: np.ndarray, count: int) -> list[Beam]:
        return chosen("live", total_wv, original(live, total_wv, total_wv.size), count)

    def keep(original: Callable, kept: list[Beam], live: list[Beam], ended_w: np.ndarray, strategy: Strategy) -> list[Beam]:
        everything = of_size(strategy, len(kept) + len(live) + strategy.beam_size)
        return chosen("kept", ended_w, original(kept, live, ended_w, everything), strategy.beam_size)

    def stops(original: Callable, live: list[Beam], kept: Sequence[Beam], strategy: Strategy) -> bool:
        key: Key = ("stop", here[0], here[1])
        chooser.made[key] = chooser.stop(key, live, list(kept), lambda live, kept: original(live, kept, strategy))
        return chooser.made[key]

    row: Replaces = {"beams.Row.__init__": numbered, "beams.Row.advance": advance}
    return {**row, "beams.best": best, "beams.keep": keep, "beams.stops": stops}
