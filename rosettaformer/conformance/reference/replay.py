"""The near-tie replay: a search of the reference follows a port wherever the port's choice is possible.

A choice is possible if a score error within its bound makes the reference choose it.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from reference_numpy.beams import Beam

from ..case import Case
from .choices import Chooser, Key

Bounds = Callable[[str, int], float]  # (what is chosen, step) -> the largest error of its scores
Hypothesis = tuple[int, tuple[int, ...]]  # row, tokens
ANY = 1e6  # an error that explains any choice of a token with a finite score
SHARES = (1.0, 0.5, 0.25)  # of an error, since the whole error may overshoot an unlikely token


class TokenReplay(Chooser):
    """Follows a port's tokens, row by row, up to the first one that is not possible."""

    def __init__(self, case: Case, answer: Mapping[str, np.ndarray], bounds: Bounds) -> None:
        super().__init__()
        self._token_bn, self._bounds, self._end = answer["token_bn"], bounds, case.inputs["strategy.end_id"]
        self._lost: dict[int, str] = {}
        self._done: set[int] = set()

    def token(self, key: Key, own: int, scores_bv: np.ndarray, again: Callable[[np.ndarray], np.ndarray]) -> int:
        _, row, step = key
        wanted, chosen = int(self._token_bn[row, step]), own
        if row not in self._done and row not in self._lost and wanted != own:
            bound = self._bounds("token", step)
            if could_choose(wanted, row, scores_bv, again, bound):
                chosen = wanted
            else:
                least = _least(lambda error: could_choose(wanted, row, scores_bv, again, error), bound)
                why = f"no error of the scores makes it {wanted}" if least > ANY else f"scores {least:.3g} off would make it {wanted}"
                self._lost[row] = f"in row {row} the token of step {step} must be {own}; {why}, and {bound:.3g} is allowed"
        if chosen == self._end:
            self._done.add(row)
        return chosen

    def notes(self, reference: np.ndarray) -> list[str]:
        """Returns what is wrong with the port's choices, in words. reference: the tokens of this run."""
        return list(self._lost.values())

    def others(self, reference: np.ndarray) -> set[Hypothesis]:
        """No hypotheses: a row has one answer, which follows from its tokens."""
        return set()


def could_choose(wanted: int, row: int, scores_bv: np.ndarray, again: Callable[[np.ndarray], np.ndarray], error: float) -> bool:
    """Whether some score error of a row, of at most this size, makes the reference choose the wanted token."""
    if not np.isfinite(scores_bv[row, wanted]):
        return False
    for sign_v, share in itertools.product(_directions(wanted, scores_bv[row]), SHARES):
        other_bv = scores_bv.copy()
        other_bv[row] += scores_bv.dtype.type(share * error) * sign_v
        if again(other_bv)[row] == wanted:
            return True
    return False


def _directions(wanted: int, scores_v: np.ndarray) -> Iterator[np.ndarray]:
    """The signs of the errors that favour a token most: raise it by itself; with all lower or all higher ids, between which a draw falls;
    with the n likeliest tokens, or with all others, which top-k and top-p tell apart."""
    ids = np.arange(len(scores_v))
    rank_v = np.argsort(np.argsort(-scores_v, kind="stable"))
    chosen = [ids == wanted, ids <= wanted, ids >= wanted]
    chosen += [part for count in range(1, len(ids)) for part in (rank_v < count, (rank_v >= count) | (ids == wanted))]
    for up_v in chosen:
        yield np.where(up_v, 1, -1).astype(scores_v.dtype)


def _least(explains: Callable[[float], bool], bound: float) -> float:
    """The smallest error that explains, to three digits; infinite if none does."""
    low, high = bound, max(2 * bound, 1e-12)
    while not explains(high):
        low, high = high, 2 * high
        if high > ANY:
            return np.inf
    while high > 1.001 * low:
        middle = (low + high) / 2
        low, high = (low, middle) if explains(middle) else (middle, high)
    return high


class BeamReplay(Chooser):
    """Keeps the beams that lead to a port's hypotheses, and orders these as the port does, wherever that is possible.

    rejected: hypotheses that the reference found and the port has not. A beam that leads to one of them is the last choice.
    """

    def __init__(self, case: Case, answer: Mapping[str, np.ndarray], bounds: Bounds, rejected: set[Hypothesis]) -> None:
        super().__init__()
        self._bounds, self._rejected, self._end = bounds, rejected, case.inputs["strategy.end_id"]
        self._wanted = [
            [self._ended(token_n) for token_n, score in zip(*row, strict=True) if np.isfinite(score)]
            for row in zip(answer["token_bwn"], answer["score_bw"].astype(np.float64), strict=True)
        ]
        self._missed: dict[Hypothesis, str] = {}

    def ranked(self, key: Key, ranking: list[Beam], count: int) -> list[Beam]:
        kind, row, step = key
        wanted, room = self._wanted[row], 2 * self._bounds(kind, step)
        places = {one[: step + 1] if kind == "live" else one: place for place, one in reversed([*enumerate(wanted)])}
        rejected = {one[: step + 1] if kind == "live" else one for number, one in self._rejected if number == row}
        result = _picked(ranking, lambda tokens: places.get(tokens, len(wanted) + (tokens in rejected)), room, count)
        for beam in ranking:
            if beam.tokens in places and beam not in result:
                what = f"dropped at step {step}, where it lies {result[-1].score - beam.score:.3g} below the worst that is kept"
                for one in wanted:
                    if one[: len(beam.tokens)] == beam.tokens:
                        self._missed.setdefault((row, one), f"{what}, and {room:.3g} is allowed")
        return [beam for beam in ranking if beam in result] if kind == "live" else result

    def stop(self, key: Key, live: list[Beam], kept: list[Beam], stops: Callable[[list[Beam], list[Beam]], bool]) -> bool:
        step = key[2]
        up, down = self._bounds("live", step), self._bounds("kept", step)
        return stops([beam._replace(score=beam.score + up) for beam in live], [beam._replace(score=beam.score - down) for beam in kept])

    def notes(self, reference: np.ndarray) -> list[str]:
        """Returns what is wrong with the port's hypotheses, in words, the first of each row. reference: the tokens of this run."""
        found = []
        for row, wanted in enumerate(self._wanted):
            own = [self._ended(token_n) for token_n in reference[row]]
            wrong = [place for place, tokens in enumerate(wanted) if own[place] != tokens]
            found += [f"in row {row} hypothesis {place} is {list(wanted[place])}, {self._why(row, wanted[place])}" for place in wrong[:1]]
        return found

    def others(self, reference: np.ndarray) -> set[Hypothesis]:
        """Returns the hypotheses of this run that the port does not have."""
        own = {(row, self._ended(token_n)) for row, token_wn in enumerate(reference) for token_n in token_wn}
        return own - {(row, tokens) for row, wanted in enumerate(self._wanted) for tokens in wanted}

    def _why(self, row: int, tokens: tuple[int, ...]) -> str:
        last = max(step for kind, other, step in self.made if (kind, other) == ("kept", row))
        kept = self.made[("kept", row, last)]
        if tokens in kept:
            return f"whose score gives it place {kept.index(tokens)}"
        return self._missed.get((row, tokens), "which the search does not find")

    def _ended(self, token_n: np.ndarray) -> tuple[int, ...]:
        """Returns the tokens up to and including the end token."""
        tokens = token_n.tolist()
        return tuple(tokens[: tokens.index(self._end) + 1] if self._end in tokens else tokens)


def _picked(ranking: list[Beam], place: Callable[[tuple[int, ...]], int], room: float, count: int) -> list[Beam]:
    """`count` beams of the ranking: repeatedly the first in place among those within `room` of the best one that is left."""
    left, result = list(ranking), list[Beam]()
    while left and len(result) < count:
        near = [beam for beam in left if left[0].score - beam.score <= room]
        result.append(min(near, key=lambda beam: place(beam.tokens)))
        left.remove(result[-1])
    return result
