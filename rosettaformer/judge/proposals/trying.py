"""Decides by trying: runs every value of what is open on cases that tell the values apart; a value is chosen if it is clearly the best."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from ..catalogue import Alteration, defects_of
from .components import is_model
from .draft import Choice, Draft, Selection
from .running import SAME, TRIED, Trials, combinations

WIDE, NARROW = 1e-9, 2e-6  # between them lie the errors in float64 of constants and tables in float32
APART = 10  # every other value's error is at least this many times the best one's, if a case tells them apart
FAR = 5  # the same if the best is not right, but by far the nearest
NEAR = 0.3  # the largest error of a value that counts as near
# the parts in which a choice shows; the last two: masks of the given keys, and of a decoder's own
GROUPS = ("norms", "feed_forward", "attention", "source", "target")
# the groups of cases in their order, and the groups of choices tried on them: a choice that does not show by itself may show with others
STEPS = (
    ("norms", ("norms",)),
    ("feed_forward", ("feed_forward",)),
    ("feed_forward", ("norms", "feed_forward")),
    *((group, (group,)) for group in GROUPS[2:]),
    ("all", GROUPS),
)
NORMS = defects_of("deviation")["NRM1"].hypotheses  # what users' norms divide by
Found = tuple[dict[str, Any], Alteration | None]  # values, and the deviation of the norms with which they give the reference's numbers


def decide(draft: Draft) -> None:
    """Sets what trying decides: each group of choices that shows in the same part of a model, on cases in which the other parts are silent.

    A combination that gives the reference's numbers is sought first, also with a known deviation of the norms; then each of its values that
    is clearly better than every other is decided. If none gives these numbers, the one that is by far the nearest is taken, and reported
    so.
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
    """Drops float64 if a module whose norms are right, also in rows of small variance, has errors as large as float32 numbers cause."""
    draft = trials.draft
    small, ordinary = (
        [trials.error(draft.selection, group, draft.deviation) for group in groups] for groups in (GROUPS[:2], (*GROUPS[2:], "all"))
    )
    coarse = [error for error in ordinary if WIDE < error < NARROW]
    if draft.dtypes == ("float64", "float32") and max(small) < SAME and coarse:
        draft.dtypes, draft.refused = ("float32",), f"it errs by {max(coarse):.0e}, as what computes with numbers of float32"


def _settle(trials: Trials, choices: Sequence[Choice], group: str, near: bool) -> bool:
    """Decides the choices that the group shows; returns whether the numbers are the reference's. near: the nearest ones suffice."""
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
            draft.undecided[choice.name] = f" ({TRIED} combinations were tried, not all)"
    return bool(exact)


def _exact(trials: Trials, tried: Sequence[dict[str, Any]], group: str) -> Found | None:
    """Returns the first selection that gives the reference's numbers, and with which deviation of the norms; None if none do."""
    known = trials.draft.deviation
    possible: tuple[Alteration | None, ...] = (known,) if known else (None,) if group == "all" else (None, *NORMS)
    found = itertools.product(possible, tried)
    return next(((selection, one) for one, selection in found if trials.error(selection, group, one) < SAME), None)


def _climbed(trials: Trials, tried: Sequence[dict[str, Any]], choices: Sequence[Choice], group: str) -> Found | None:
    """Returns the selection that gives the reference's numbers, from the nearest by the best value of each choice in turn; or None."""
    deviation = trials.draft.deviation

    def error(selection: Selection) -> float:
        return trials.error(selection, group, deviation)

    selection = min(tried, key=error)
    for choice in choices:
        selection = min(({**selection, choice.name: value} for value in choice.values), key=error)
    return (selection, deviation) if error(selection) < SAME else None


def _is_decided(trials: Trials, choice: Choice, group: str, exact: bool) -> bool:
    """Sets the best value of a choice; returns whether it is clearly better than every other.

    Of masks the likeliest right one is taken: one mask has many forms.
    """
    draft, name = trials.draft, choice.name
    if exact and (choice.argument or name == "padding_id"):
        return True
    errors = [trials.error({**draft.selection, name: value}, group, draft.deviation) for value in choice.values]
    best, *others = sorted(errors)
    if exact and choice.read and choice.value(draft.selection) == choice.values[0]:
        decided = errors[0] < SAME < max(others)  # as read from the module, and the cases show it
    elif exact:
        decided = all(error > max(APART * best, SAME) for error in others)
    else:
        decided = not choice.argument and best < NEAR and FAR * best < others[0]
    if decided:
        draft.selection = {**draft.selection, name: choice.values[errors.index(best)]}
    return decided


def said(draft: Draft, choice: Choice, value: Any) -> str:
    """Returns a value of a choice, in words."""
    if choice.name.startswith("axes of"):
        parts = [part for part in draft.match.root.within() if part.component == choice.name.removeprefix("axes of ")]
        rows = [row for part in parts for row in part.rows if len(row.axes) > 1]
        return f"{rows[0].native} {rows[0].axes[min(value, len(rows[0].axes) - 1)]}"
    return ", ".join(other for _, other in value) if choice.name.startswith("order of") else str(value)
