"""Settles choices by trials, on cases that distinguish their values."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from ..catalogue import Alteration, defects_of
from . import words
from .components import is_model
from .draft import Choice, Draft, Selection
from .running import SAME, TRIED, Trials, combinations

WIDE, NARROW = 1e-9, 2e-6  # float64 errors caused by float32 constants and tables are between these
APART = 10  # if a case distinguishes the values, other errors are at least this many times the best error
FAR = 5  # the same factor, if the best value does not match but comes nearest
NEAR = 0.3  # the largest error of a value that counts as near
# the parts that a choice affects; the last two are masks of the given keys and of a decoder's own keys
GROUPS = ("norms", "feed_forward", "attention", "source", "target")
# groups of cases in order, and the groups of choices tried on them; some choices only matter together
STEPS = (
    ("norms", ("norms",)),
    ("feed_forward", ("feed_forward",)),
    ("feed_forward", ("norms", "feed_forward")),
    *((group, (group,)) for group in GROUPS[2:]),
    ("all", GROUPS),
)
NORMS = defects_of("deviation")["NRM1"].hypotheses  # known variants of the divisor in users' norms
Found = tuple[dict[str, Any], Alteration | None]  # values, and the known bug of the norms with which they match the reference


def decide(draft: Draft) -> None:
    """Settles the choices, group by group, on cases where other parts of the model are silent.

    First looks for a combination that matches the reference, also with a known bug of the norms;
    each of its values that is clearly better than the others is settled. If none matches, a
    combination that comes much nearer than the others is used, and reported as such.
    """
    trials = Trials(draft)
    for near in (False, True):
        for group, shown in STEPS:
            choices = [choice for choice in draft.choices if choice.name in draft.undecided and choice.shows_in in shown]
            if choices or (group == "norms" and not near):
                draft.verified |= _settle(trials, choices, group, near) and group == "norms"
    _limit_dtypes(trials)
    draft.form = trials.form() if is_model(draft.component) else ""


def _limit_dtypes(trials: Trials) -> None:
    """Drops float64 if the norms match, but other errors are as large as float32's."""
    draft = trials.draft
    small, ordinary = (
        [trials.error(draft.selection, group, draft.deviation) for group in groups] for groups in (GROUPS[:2], (*GROUPS[2:], "all"))
    )
    coarse = [error for error in ordinary if WIDE < error < NARROW]
    if draft.dtypes == ("float64", "float32") and max(small) < SAME and coarse:
        draft.dtypes, draft.refused = ("float32",), words.single_precision(max(coarse))


def _settle(trials: Trials, choices: Sequence[Choice], group: str, near: bool) -> bool:
    """Settles the group's choices. Returns whether outputs match. near: the nearest suffice."""
    draft, before = trials.draft, dict(trials.draft.selection)
    likely = [dataclasses.replace(choice, values=choice.values[:1]) if choice.read else choice for choice in choices]
    tried = [before | values for values in itertools.islice(combinations(likely), TRIED + 1)]
    limited, tried = len(tried) > TRIED, tried[:TRIED]
    exact = _exact(trials, tried, group) or (_climbed(trials, tried, choices, group) if limited else None)
    if exact:
        draft.selection, draft.deviation = exact
    else:
        nearest = min(tried, key=lambda selection: trials.error(selection, group, draft.deviation))
        if FAR * trials.error(nearest, group, draft.deviation) < trials.error(before, group, draft.deviation):
            draft.selection = nearest
    for choice in choices:
        if (exact or near) and _is_decided(trials, choice, group, bool(exact)):
            del draft.undecided[choice.name]
            (draft.tried if exact else draft.nearest)[choice.name] = said(draft, choice, choice.value(draft.selection))
        elif limited:
            draft.undecided[choice.name] = words.limited(TRIED)
    return bool(exact)


def _exact(trials: Trials, tried: Sequence[dict[str, Any]], group: str) -> Found | None:
    """Returns the first matching selection, and the bug of the norms; None if none matches."""
    known = trials.draft.deviation
    possible: tuple[Alteration | None, ...] = (known,) if known else (None,) if group == "all" else (None, *NORMS)
    found = itertools.product(possible, tried)
    return next(((selection, one) for one, selection in found if trials.error(selection, group, one) < SAME), None)


def _climbed(trials: Trials, tried: Sequence[dict[str, Any]], choices: Sequence[Choice], group: str) -> Found | None:
    """Improves the nearest selection one choice at a time; None if it does not match then."""
    deviation = trials.draft.deviation

    def error(selection: Selection) -> float:
        return trials.error(selection, group, deviation)

    selection = min(tried, key=error)
    for choice in choices:
        selection = min(({**selection, choice.name: value} for value in choice.values), key=error)
    return (selection, deviation) if error(selection) < SAME else None


def _is_decided(trials: Trials, choice: Choice, group: str, exact: bool) -> bool:
    """Sets the best value of a choice. Returns whether it is clearly better than all others.

    For masks, the likeliest matching form is chosen, since one mask has many forms.
    """
    draft, name = trials.draft, choice.name
    if exact and (choice.argument or name == "padding_id"):
        return True
    errors = [trials.error({**draft.selection, name: value}, group, draft.deviation) for value in choice.values]
    best, *others = sorted(errors)
    if exact and choice.read and choice.value(draft.selection) == choice.values[0]:
        decided = errors[0] < SAME < max(others)  # read from the module, and confirmed by the cases
    elif exact:
        decided = all(error > max(APART * best, SAME) for error in others)
    else:
        decided = not choice.argument and best < NEAR and FAR * best < others[0]
    if decided:
        draft.selection = {**draft.selection, name: choice.values[errors.index(best)]}
    return decided


def said(draft: Draft, choice: Choice, value: Any) -> str:
    """Describes a value of a choice."""
    if choice.name.startswith("axes of"):
        parts = [part for part in draft.match.root.within() if part.component == choice.name.removeprefix("axes of ")]
        rows = [row for part in parts for row in part.rows if len(row.axes) > 1]
        return f"{rows[0].native} {rows[0].axes[min(value, len(rows[0].axes) - 1)]}"
    return ", ".join(other for _, other in value) if choice.name.startswith("order of") else str(value)
