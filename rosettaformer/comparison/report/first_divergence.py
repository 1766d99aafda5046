"""Finds what diverges first: a layer whose inputs agree, or what runs between two layers."""

from collections.abc import Callable, Sequence
from typing import Any

Between = Callable[[Any, Any], list[list[str]]]


def first(rows: Sequence[Any], output: Any, between: Between) -> dict[str, Any] | None:
    """Returns the first layer, in the left's order of execution, that gives something else for the same inputs; or the first whose inputs
    differ although every layer before it agrees. None if nothing differs.

    rows: `layer_rows.LayerRow`; output: of the whole model. between: layers without a counterpart that a side calls between two rows.
    """
    leaves = [row for row in rows if row.leaf]
    before = None
    for row in leaves:
        if row.inputs.verdict == row.free.verdict == "differs" and not (before and before.free.verdict == "differs"):
            return _between(before, row, between)
        wrong = any(one.verdict == "differs" for one in row.forced) or (not row.forced and row.free.verdict == "differs")
        if wrong and not _made_good(row, leaves):
            found = max(row.forced or [row.free], key=lambda one: one.units)
            wrong_too = [one for one in leaves if any(each.verdict == "differs" for each in one.forced)]
            also = [one.left for one in wrong_too if one is not row]
            place = {"what": "layer", "left": row.left, "right": row.right, "call": row.call, "also": also}
            return place | {"units": found.units, "settings": row.settings, "note": found.note or row.note}
        before = row
    if output.free.verdict == "differs":
        return _between(before, None, between)
    return None


def _made_good(row: Any, leaves: Sequence[Any]) -> bool:
    """Whether a layer that is given the output, on the left or on the right, has the same input on both sides: only the boundary lies
    elsewhere.
    """
    fed = [other for other in leaves if any(one and one == another for one, another in zip(row.gives, other.given, strict=True))]
    return row.free.verdict == "differs" and any(other.inputs.verdict in ("equal", "rounding") for other in fed)


def _between(before: Any, after: Any, between: Between) -> dict[str, Any]:
    """What runs between two matched layers: functions, or layers without a counterpart."""
    ends = [[row.left, row.right] if row else ["", ""] for row in (before, after)]
    # An input of another shape is padded on one side before the layer, and on the other within it: the layer itself may be the cause.
    padded = after is not None and after.inputs.shapes
    settings = [
        text for row in (before, after) if row for text in row.settings if text.startswith("activation") or (padded and row is after)
    ]
    return {
        "what": "between",
        "after": ends[0],
        "before": ends[1],
        "unmatched": between(before, after),
        "settings": settings,
        "units": after.inputs.units if after else None,
    }
