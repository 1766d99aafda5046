"""Near ties of a search: a port may choose differently where rounding decides which score is
larger.

A search's tokens are compared exactly, and one choice decides all later ones. If a port's tokens
differ, the search therefore runs again: at near ties it follows the port, everywhere else it makes
its own choices. A choice is possible, and counts as a near tie, if a score error within its bound
makes the reference choose the same. The port must give the tokens of this run, and their scores
within its tolerance, which comes from the orders of `tolerance` with the choices of this run
replayed, so that the noise belongs to the compared scores. A row that still differs after a step
with undecided experts is not compared from there on.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy.beams import Beam

from ..case import Case
from . import components, other_experts
from .choices import Chooser, Key
from .tolerance import Answer, Expectations, chosen, expectation, searched

Bounds = Callable[[str, int], float]  # (kind of choice, step) -> the largest error of its scores
Hypothesis = tuple[int, tuple[int, ...]]  # row, tokens
ANY = 1e6  # error that makes any token with a finite score possible
SHARES = (1.0, 0.5, 0.25)  # shares of an error to try, since the full error may overshoot an unlikely token


class TokenReplay(Chooser):
    """Follows a port's tokens in each row up to the first impossible one."""

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
                why = f"no score error gives {wanted}" if least > ANY else f"only a score error of {least:.3g} gives {wanted}"
                self._lost[row] = f"in row {row} the token of step {step} must be {own}; {why}, allowed {bound:.3g}"
        if chosen == self._end:
            self._done.add(row)
        return chosen

    def notes(self, reference: np.ndarray) -> dict[int, str]:
        """Returns what is wrong with the port's choices, by row. reference: the tokens of this run."""
        return self._lost

    def others(self, reference: np.ndarray) -> set[Hypothesis]:
        """Returns no hypotheses: a row has one output, determined by its tokens."""
        return set()


def could_choose(wanted: int, row: int, scores_bv: np.ndarray, again: Callable[[np.ndarray], np.ndarray], error: float) -> bool:
    """Whether an error of at most this size makes the reference choose the wanted token."""
    if not np.isfinite(scores_bv[row, wanted]):
        return False
    for sign_v, share in itertools.product(_directions(wanted, scores_bv[row]), SHARES):
        other_bv = scores_bv.copy()
        other_bv[row] += scores_bv.dtype.type(share * error) * sign_v
        if again(other_bv)[row] == wanted:
            return True
    return False


def _directions(wanted: int, scores_v: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the signs of the errors that favor a token most.

    They raise it alone; with all lower or all higher ids, which matters for a draw; with the n most
    likely tokens or all others, which matters for top-k and top-p.
    """
    ids = np.arange(len(scores_v))
    rank_v = np.argsort(np.argsort(-scores_v, kind="stable"))
    chosen = [ids == wanted, ids <= wanted, ids >= wanted]
    chosen += [part for count in range(1, len(ids)) for part in (rank_v < count, (rank_v >= count) | (ids == wanted))]
    for up_v in chosen:
        yield np.where(up_v, 1, -1).astype(scores_v.dtype)


def _least(explains: Callable[[float], bool], bound: float) -> float:
    """The smallest error that makes the choice possible, to three digits; infinite if none does."""
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
    """Keeps the beams that lead to a port's hypotheses, in the port's order, wherever possible.

    rejected: hypotheses that the reference found and the port did not; beams that lead to them are
    the last choice.
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
                what = f"dropped at step {step}, {result[-1].score - beam.score:.3g} below the worst kept score"
                for one in wanted:
                    if one[: len(beam.tokens)] == beam.tokens:
                        self._missed.setdefault((row, one), f"{what}, allowed {room:.3g}")
        return [beam for beam in ranking if beam in result] if kind == "live" else result

    def stop(self, key: Key, live: list[Beam], kept: list[Beam], stops: Callable[[list[Beam], list[Beam]], bool]) -> bool:
        step = key[2]
        up, down = self._bounds("live", step), self._bounds("kept", step)
        return stops([beam._replace(score=beam.score + up) for beam in live], [beam._replace(score=beam.score - down) for beam in kept])

    def notes(self, reference: np.ndarray) -> dict[int, str]:
        """Returns the first wrong hypothesis of each row. reference: the tokens of this run."""
        found = {}
        for row, wanted in enumerate(self._wanted):
            own = [self._ended(token_n) for token_n in reference[row]]
            wrong = [place for place, tokens in enumerate(wanted) if own[place] != tokens]
            for place in wrong[:1]:
                found[row] = f"in row {row} hypothesis {place} is {list(wanted[place])}, {self._why(row, wanted[place])}"
        return found

    def others(self, reference: np.ndarray) -> set[Hypothesis]:
        """Returns the hypotheses of this run that the port lacks."""
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
    """Picks `count` beams: each time the first in place within `room` of the best score left."""
    left, result = list(ranking), list[Beam]()
    while left and len(result) < count:
        near = [beam for beam in left if left[0].score - beam.score <= room]
        result.append(min(near, key=lambda beam: place(beam.tokens)))
        left.remove(result[-1])
    return result


FAR = (1000.0, 16.0, 4.0, 1.0)  # multiples of the scores' bound, none of which explains the choices of a port that is far off
ROUNDS = 12  # runs at most until a run's choices are consistent with its own noise


def followed(
    case: Case,
    before: Expectations,
    answer: Any,
    ask: Answer = components.answer,
    rounded: bool = False,
    chosen_btlx: np.ndarray | None = None,
) -> Expectations:
    """Returns the expectation of a case for a port with this answer; it changes only for a search
    with other tokens, or with undecided experts.

    before: the result of `tolerance.expect` with the same `ask` and `rounded`. chosen_btlx: the
    experts that the port says it chose.
    """
    undecided = any(one.undecided for one in before.values())
    if case.component not in components.SEARCHES:
        return other_experts.followed(case, before, answer, ask, rounded, chosen_btlx) if answer and undecided else before
    if not _is_formed(case, before, answer):
        return before
    tokens, _ = before
    if np.array_equal(answer[tokens], before[tokens].reference) and not (undecided and _wrong(before, answer)):
        return before
    if not undecided and (note := _far(case, before, answer, ask, rounded)):
        return before | {tokens: dataclasses.replace(before[tokens], note=note)}
    bounds: Bounds = lambda kind, step: ANY  # noqa: E731
    made: Mapping[Key, Any] = {}
    rejected: set[Hypothesis] = set()
    for _ in range(ROUNDS):
        replay = _replay(case, answer, bounds, rejected)
        reference, decisions = chosen(case, replay, ask, rounded)
        if replay.made != made:  # equal choices give equal scores in every order
            run = searched(case, replay.made, reference, decisions, ask)
        others = replay.others(run.found[tokens].reference)
        if replay.made == made and others <= rejected:
            break
        made, bounds, rejected = replay.made, _bounds(replay.scores, run.scores), rejected | others
    notes = replay.notes(run.found[tokens].reference)
    open_rows = {
        row: step for row, step in _wrong(run.found, answer).items() if any(row == own and step >= first for own, first in run.undecided)
    }
    note = "; ".join(text for row, text in notes.items() if row not in open_rows)
    found = run.found | {tokens: dataclasses.replace(run.found[tokens], note=note)}
    return _without(found, answer, open_rows) if open_rows else found


def _wrong(found: Expectations, answer: Mapping[str, np.ndarray]) -> dict[int, int]:
    """Returns the rows with wrong tokens or scores, and their first wrong step; of hypotheses, the last step."""
    tokens, scores = found
    one = found[scores]
    with np.errstate(invalid="ignore"):  # scores of missing hypotheses
        error = np.abs(answer[scores].astype(np.float64) - one.reference)
    apart = np.sqrt(np.mean(np.square(np.nan_to_num(error)))) > one.bound_rmse
    off = (answer[scores] != one.reference) & ~(error <= (one.bound_rmse if apart else one.bound))
    wrong = answer[tokens] != found[tokens].reference
    if wrong.ndim == 3:
        return dict.fromkeys(np.flatnonzero(wrong.any((1, 2)) | off.any(1)).tolist(), wrong.shape[2] - 1)
    wrong |= off
    return {row: int(wrong[row].argmax()) for row in np.flatnonzero(wrong.any(1)).tolist()}


def _without(found: Expectations, answer: Mapping[str, np.ndarray], open_rows: Mapping[int, int]) -> Expectations:
    """Returns the expectations without what depends on open decisions. open_rows: row -> first step; of hypotheses, all are open."""
    tokens, *_ = found
    rows, *beams, length = answer[tokens].shape
    first_b = np.array([open_rows.get(row, length) * (row not in open_rows or not beams) for row in range(rows)])
    open_bn = np.arange(length) >= first_b[:, None]
    result, places = {}, {tokens: open_bn[:, None] if beams else open_bn}
    for name, one in found.items():
        reference = np.where(places.get(name, open_bn[:, :1] if beams else open_bn), answer[name], one.reference)
        open_ = int(open_bn.sum()) * math.prod(beams)
        result[name] = dataclasses.replace(one, reference=reference, open=open_, tried=int(open_bn.all()))
    return result


def _replay(case: Case, answer: Mapping[str, np.ndarray], bounds: Bounds, rejected: set[Hypothesis]) -> "TokenReplay | BeamReplay":
    return BeamReplay(case, answer, bounds, rejected) if case.component == "beam_search" else TokenReplay(case, answer, bounds)


def _far(case: Case, before: Expectations, answer: Any, ask: Answer, rounded: bool) -> str:
    """The fault of choices that no error near the scores' bound explains; empty if one may.

    It saves the runs in every order that find the exact bounds.
    """
    tokens, *others = before
    bound, notes = max(before[name].bound for name in others), dict[int, str]()
    for factor in FAR:
        rejected: set[Hypothesis] = set()
        for _ in range(ROUNDS):
            replay = _replay(case, answer, functools.partial(_same_for_all, factor * bound), rejected)
            reference = chosen(case, replay, ask, rounded)[0][tokens]
            if not (notes := replay.notes(reference)):
                return ""
            if (lacking := replay.others(reference)) <= rejected:
                break
            rejected |= lacking
    return "; ".join(notes.values())


def _same_for_all(error: float, kind: str, step: int) -> float:
    return error


def _is_formed(case: Case, before: Expectations, answer: Any) -> bool:
    """Whether the answer has the names, shapes and ids of a search's."""
    if not isinstance(answer, Mapping) or answer.keys() != before.keys():
        return False
    if any(not isinstance(answer[name], np.ndarray) or answer[name].shape != one.reference.shape for name, one in before.items()):
        return False
    name = next(iter(before))
    return answer[name].dtype.kind in "iu" and bool(np.all((answer[name] >= 0) & (answer[name] < case.config.target_vocabulary)))


def _bounds(reference: Mapping[Key, np.ndarray], runs: list[dict[Key, np.ndarray]]) -> Bounds:
    """The bounds of a run's scores, from the orders; they grow by step, since scores are sums."""
    steps: dict[str, dict[int, float]] = {}
    for kind, step in dict.fromkeys((kind, step) for kind, _, step in reference):
        keys = [key for key in reference if (key[0], key[2]) == (kind, step) and all(key in run for run in runs)]
        parts = [np.concatenate([run[key] for key in keys]) for run in (reference, *runs)] if keys else []
        bound = expectation(parts[0].astype(np.float64), parts[1:]).bound if keys else 0.0
        steps.setdefault(kind, {})[step] = bound
    return lambda kind, step: max((bound for other, bound in steps.get(kind, {}).items() if other <= step), default=0.0)
