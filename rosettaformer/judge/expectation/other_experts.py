"""Follows a port that chose other experts than the reference where rounding decides."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..case import Case
from . import components, tolerance
from .routing import Call, Decisions, Token
from .tolerance import Answer, Expectations

Option = tuple[Token, Sequence[np.ndarray]]
Place = tuple[int, int]  # row and position of a text
ROUTED = "routed_experts"  # the component whose output are the decisions
TOGETHER = 3  # decisions of one token that are changed at the same time
RUNS = 200  # runs of the reference at most


def followed(
    case: Case, before: Expectations, answer: Mapping[str, np.ndarray], ask: Answer = components.answer, rounded: bool = False
) -> Expectations:
    """Returns the expectations with the undecided experts of a port that gave this answer.

    From the first wrong token of each row on: if experts of that token are undecided, their other
    choices are tried, and kept if the token is then right. Decided experts never change. before: the
    result of `tolerance.expect` with the same `ask` and `rounded`.
    """
    if not any(one.undecided for one in before.values()):
        return before
    if case.component == ROUTED:
        return _as_returned(case, before, answer, ask, rounded)
    if not _placed(case, before, answer):
        return before
    changed: dict[Token, np.ndarray] = {}
    found, decisions, bounds = tolerance.decided(case, ask, rounded, changed)
    left, runs = set(range(len(next(iter(answer.values()))))), 0
    while runs < RUNS and (place := _first_wrong(found, answer, left)):
        row, position = place
        open_ = [(token, rivals) for token, at, rivals in decisions.undecided(bounds, case.real_bt) if (token.row, at) == place]
        for tried in _combinations(open_):
            runs += 1
            with Decisions(changed=changed | tried).recorded():
                reference = ask(case if rounded else case.at("float64"))
            if not _excess(found, reference, answer)[row, position] > 1:
                changed |= tried
                found, decisions, bounds = tolerance.decided(case, ask, rounded, changed)
                break
        else:
            left.discard(row)
    return found


def _as_returned(case: Case, before: Expectations, answer: Mapping[str, np.ndarray], ask: Answer, rounded: bool) -> Expectations:
    """Returns the expectations with the port's experts wherever they are undecided, layer by layer."""
    chosen_btlx = answer.get("output")
    if not isinstance(chosen_btlx, np.ndarray) or chosen_btlx.shape != before["output"].reference.shape:
        return before
    changed: dict[Token, np.ndarray] = {}
    found, decisions, bounds = tolerance.decided(case, ask, rounded, changed)
    for call in range(chosen_btlx.shape[2]):
        own = {
            token: chosen_btlx[token.row, token.place, call]
            for token, *_ in decisions.undecided(bounds, case.real_bt)
            if token.call == call and _possible(decisions.calls[call], bounds[call], token, chosen_btlx[token.row, token.place, call])
        }
        if own:
            changed |= own
            found, decisions, bounds = tolerance.decided(case, ask, rounded, changed)
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


def _placed(case: Case, expected: Expectations, answer: Mapping[str, np.ndarray]) -> bool:
    """Whether the answer has the right shapes, and every output belongs to the tokens of one text."""
    if (case.config.encoder_layers and case.config.decoder_layers) or answer.keys() != expected.keys():
        return False
    shapes = {one.reference.shape[:2] for one in expected.values()}
    return len(shapes) == 1 and all(
        isinstance(answer[name], np.ndarray) and answer[name].shape == one.reference.shape and one.reference.ndim == 3
        for name, one in expected.items()
    )


def _excess(expected: Expectations, reference: Mapping[str, np.ndarray], answer: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the largest error of every token in units of the tolerance, `b t`."""
    return np.max(
        [
            np.nan_to_num(np.abs(answer[name].astype(np.float64) - reference[name]).max(-1), nan=np.inf) / one.bound
            for name, one in expected.items()
        ],
        axis=0,
    )


def _first_wrong(expected: Expectations, answer: Mapping[str, np.ndarray], rows: set[int]) -> Place | None:
    """Returns the first wrong token of the first of these rows with one."""
    excess_bt = _excess(expected, {name: one.reference for name, one in expected.items()}, answer)
    wrong = [(row, position) for row, position in np.argwhere(excess_bt > 1).tolist() if row in rows]
    return wrong[0] if wrong else None


def _combinations(options: Sequence[Option]) -> Iterator[dict[Token, np.ndarray]]:
    """Yields changes of one decision, then of several."""
    for count in range(1, min(TOGETHER, len(options)) + 1):
        for chosen in itertools.combinations(options, count):
            for rivals in itertools.product(*(rivals for _, rivals in chosen)):
                yield {token: rival_x for (token, _), rival_x in zip(chosen, rivals, strict=True)}
