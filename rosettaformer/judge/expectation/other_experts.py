"""Follows a port that chose other experts than the reference where rounding decides."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

import numpy as np

from ..case import Case
from . import components, lowered, tolerance
from .routing import MANY, ROUTED, Call, Decisions, Token
from .tolerance import Answer, Expectation, Expectations, Lower

Changes = dict[Token, np.ndarray]
Place = tuple[int, int]  # row and position of a text
Arrays = Mapping[str, np.ndarray]
Measure = Callable[[Expectation, np.ndarray, tuple[int, ...]], np.ndarray]
Make = Callable[[Changes], "_Branches"]
RUNS = 40  # runs of the reference at most


def followed(
    case: Case,
    before: Expectations,
    answer: Arrays,
    ask: Answer = components.answer,
    rounded: bool = False,
    chosen_btlx: np.ndarray | None = None,
) -> Expectations:
    """Returns the expectations with the undecided experts of a port that gave this answer.

    Decided experts never change. Where an output belongs to a token: from the first wrong token of
    each row on, if experts of that token are undecided, their other choices are tried, and kept if
    the token is then right. Other outputs, like gradients, depend on all choices together. If not
    all choices can be tried, what depends on them is not compared. before: the result of
    `tolerance.expect` with the same `ask` and `rounded`. chosen_btlx: the experts that the port says
    it chose, which are taken first.
    """
    if not any(one.undecided for one in before.values()):
        return before
    if answer.keys() != before.keys() or any(np.shape(answer[name]) != one.reference.shape for name, one in before.items()):
        return before
    make = functools.partial(_Branches, case, ask, rounded, lowered.widening(next(iter(before.values())).lower))
    if case.component == ROUTED:
        return _as_returned(make({}), answer["output"], case.real_bt).found
    if not _placed(case, before):
        return _together(before, answer, make)
    branches = None if chosen_btlx is None else _as_returned(make({}), chosen_btlx, case.real_bt)
    return _token_by_token(case, branches.found if branches else before, answer, make, branches)


def _token_by_token(case: Case, found: Expectations, answer: Arrays, make: Make, branches: "_Branches | None") -> Expectations:
    rows, runs, open_rows = range(_by_token(next(iter(answer.values()))).shape[1]), 0, dict[int, int]()
    for measure in (_largest, _rmse):
        left = {*rows} - open_rows.keys()
        while place := _first_wrong(found, answer, left, measure):
            branches = branches or make({})

            def right(reference: Arrays, found: Expectations = found, place: Place = place, measure: Measure = measure) -> bool:
                return bool(_excess(found, reference, answer, measure)[place] <= 1)

            own = branches.explaining(right, RUNS - runs, place)
            runs += branches.runs
            if own:
                branches = branches.also(own)
                found = branches.found
            else:
                left.discard(place[0])
                if not branches.complete and measure is _largest:
                    open_rows[place[0]] = place[1]
    return _without(found, answer, open_rows, case.real_bt, runs) if open_rows else found


def _together(before: Expectations, answer: Arrays, make: Make) -> Expectations:
    if not _differs(before, {name: one.reference for name, one in before.items()}, answer):
        return before
    branches = make({})
    if own := branches.explaining(lambda reference: not _differs(before, reference, answer), RUNS):
        return branches.also(own).found
    return before if branches.complete else {name: dataclasses.replace(one, tried=branches.runs) for name, one in before.items()}


class _Branches:
    """The choices that undecided tokens may make. found, decisions, bounds: `tolerance.decided` with the choices of `changed`.

    runs: of the reference in the last search. complete: whether it tried every choice within the
    bounds; with groups of experts that is unknown.
    """

    def __init__(self, case: Case, ask: Answer, rounded: bool, lower: Lower | None, changed: Changes) -> None:
        self._case, self._ask, self._rounded, self._lower, self.changed = case, ask, rounded, lower, changed
        self.found, self.decisions, self.bounds = tolerance.decided(case, ask, rounded, changed, lower=lower)
        self._real_bt = tolerance.real(case, self.decisions)
        self.runs, self.complete = 0, True

    def also(self, own: Changes) -> "_Branches":
        """Returns the branch with these choices, too."""
        return _Branches(self._case, self._ask, self._rounded, self._lower, self.changed | own)

    def explaining(self, right: Callable[[Arrays], bool], room: int, place: Place | None = None) -> Changes:
        """Returns the fewest other choices with which the reference is right, in at most `room` runs; empty if there are none.

        A choice changes later scores, so its own run tells which alternatives follow. place: of the tokens; by default any.
        """
        self.runs, self.complete = 0, self._case.config.router_groups == 1
        queue = collections.deque([(Changes(), self._options(self.decisions, place))])
        while queue:
            before, options = queue.popleft()
            for token, rivals in options:
                self.complete &= len(rivals) < MANY
                for rival_x in rivals:
                    if self.runs == room:
                        self.complete = False
                        return {}
                    self.runs += 1
                    own = {**before, token: rival_x}
                    decisions = Decisions(changed=self.changed | own, gradient=tolerance.has_gradients(self._case))
                    with decisions.recorded():
                        reference = self._ask(self._case if self._rounded else self._case.at("float64"))
                    if right(reference):
                        return own
                    queue.append((own, self._options(decisions, place, token)))
        return {}

    def _options(self, decisions: Decisions, place: Place | None, after: Token | None = None) -> list[tuple[Token, list[np.ndarray]]]:
        """Returns the undecided tokens at the place behind a token, with their other choices."""
        return [
            (token, rivals)
            for token, at, rivals in decisions.undecided(self.bounds, self._real_bt)
            if (place is None or (token.row, at) == place) and (after is None or token > after)
        ]


def _without(found: Expectations, answer: Arrays, open_rows: Mapping[int, int], real_bt: np.ndarray | None, tried: int) -> Expectations:
    """Returns the expectations without what depends on open decisions: the rest of each row with one. open_rows: row -> position."""
    rows, length = _by_token(next(iter(answer.values()))).shape[1:3]
    open_bt = np.arange(length) >= np.array([open_rows.get(row, length) for row in range(rows)])[:, None]
    counted = open_bt if real_bt is None else open_bt & real_bt
    alone = not (~open_bt if real_bt is None else ~open_bt & real_bt).any()
    return {
        name: dataclasses.replace(
            one, reference=np.where(open_bt[..., None], answer[name], one.reference), open=int(counted.sum()), tried=tried if alone else 0
        )
        for name, one in found.items()
    }


def _as_returned(found: _Branches, chosen_btlx: np.ndarray, real_bt: np.ndarray | None) -> _Branches:
    """Returns the branch of the port's experts wherever they are undecided, layer by layer."""
    for number in range(chosen_btlx.shape[2]):
        call, bound_bt1 = found.decisions.calls[number], found.bounds[number]
        given = {
            token: chosen_btlx[token.row, token.place, number]
            for token, *_ in found.decisions.undecided(found.bounds, real_bt)
            if token.call == number
        }
        if own := {token: chosen_x for token, chosen_x in given.items() if _possible(call, bound_bt1, token, chosen_x)}:
            found = found.also(own)
    return found


def _possible(call: Call, bound_bt1: np.ndarray, token: Token, chosen_x: np.ndarray) -> bool:
    """Whether errors within the bound could make this choice. With groups, any of an undecided token's experts count."""
    scores_x, own_x = call.scores_btx[token.row, token.place], call.chosen_btx[token.row, token.place]
    if chosen_x.sum() != own_x.sum():
        return False
    lost_x, gained_x = own_x & ~chosen_x, chosen_x & ~own_x
    if call.config.router_groups > 1 or not lost_x.any():
        return True
    return bool(scores_x[lost_x].max() - scores_x[gained_x].min() <= 2 * bound_bt1[token.row, token.place, 0])


def _placed(case: Case, expected: Expectations) -> bool:
    """Whether every output belongs to the tokens of one text: `b t d`, or of several layers `l b t d`."""
    if (case.config.encoder_layers and case.config.decoder_layers) or tolerance.has_gradients(case):
        return False
    shapes = {one.reference.shape[-3:-1] for one in expected.values()}
    return len(shapes) == 1 and all(one.reference.ndim == 3 + (case.component == "states") for one in expected.values())


def _by_token(array: np.ndarray) -> np.ndarray:
    """Returns the array `b t d` or `l b t d` as `l b t d`."""
    return array.reshape(-1, *array.shape[-3:])


def _largest(one: Expectation, error: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Returns the largest errors along these axes, in units of the tolerance."""
    return np.asarray(error.max(axes, initial=0.0) / one.bound)


def _rmse(one: Expectation, error: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Returns the root mean square errors along these axes, in units of the tolerance."""
    return np.asarray(np.sqrt(np.mean(np.square(error), axes)) / one.bound_rmse)


def _excess(expected: Expectations, reference: Arrays, answer: Arrays, measure: Measure) -> np.ndarray:
    """Returns a measure of the errors of every token, `b t`."""
    found = [measure(one, _by_token(_error(reference[name], answer[name])), (0, -1)) for name, one in expected.items()]
    return np.max([np.nan_to_num(measured_bt, nan=np.inf) for measured_bt in found], axis=0)


def _differs(expected: Expectations, reference: Arrays, answer: Arrays, measures: Collection[Measure] = (_largest, _rmse)) -> bool:
    """Whether an output is outside the tolerance."""
    errors = {name: (one, _error(reference[name], answer[name])) for name, one in expected.items() if one.reference.size}
    return any(not measure(one, error, (*range(error.ndim),)) <= 1 for one, error in errors.values() for measure in measures)


def _error(reference: np.ndarray, answer: np.ndarray) -> np.ndarray:
    return np.abs(answer.astype(np.float64) - reference)


def _first_wrong(expected: Expectations, answer: Arrays, rows: Collection[int], measure: Measure) -> Place | None:
    """Returns the first wrong token of the first of these rows with one, if the output is outside the tolerance."""
    own = {name: one.reference for name, one in expected.items()}
    if not _differs(expected, own, answer, [measure]):
        return None
    excess_bt = _excess(expected, own, answer, measure)
    wrong = [(row, position) for row, position in np.argwhere(excess_bt > 1).tolist() if row in rows]
    return wrong[0] if wrong else None
