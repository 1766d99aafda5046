"""Compares hidden states with hidden states, where one side goes on with a head that the other does not have."""

from collections.abc import Iterator

import numpy as np

from . import layouts
from .recorded_calls import WHOLE, Calls, Key


def without_head(calls: Calls) -> str:
    """Lets the side with a head end where the other ends, if no output of one has the shape of one of the other's: at the partner of the
    layer whose output is the other's. Returns a note; empty if both sides end as they are.
    """
    pair = calls.pair(WHOLE, WHOLE)
    shapes = [[array.shape for array in calls.common(call, "outputs")] for call in pair]
    if any(layouts.fit(one, other) or layouts.may_be_transposed(one, other) for one in shapes[0] for other in shapes[1]):
        return ""
    for ends in (0, 1):
        for own, partner in _partners(calls, ends):
            given, other = calls.by_key[ends]["float32"].get(own), calls.by_key[1 - ends]["float32"].get(partner)
            if not (given and other and given["outputs"] and other["outputs"] and pair[ends]["outputs"]):
                continue
            if np.array_equal(given["outputs"][0], pair[ends]["outputs"][0]):
                _end(calls, 1 - ends, partner)
                sides = [side.which for side in calls.sides]
                return f"the {sides[1 - ends]} has a head and the {sides[ends]} has none: it is compared up to {partner[0]}"
    return ""


def _partners(calls: Calls, which: int) -> Iterator[tuple[Key, Key]]:
    """Yields the calls of one side's layers, the last first, each with that of its partner."""
    partners = {path: other for path, (other, _) in calls.layers.items()}
    partners = partners if which == 0 else {other: path for path, other in partners.items()}
    for path, index in reversed(calls.by_key[which]["float32"]):
        if path and path in partners:
            yield (path, index), (partners[path], index)


def _end(calls: Calls, which: int, key: Key) -> None:
    """Lets the whole of a side give what one of its layers gives."""
    for several in calls.by_key[which].values():
        ended = {what: several[key][what][:1] for what in ("outputs", "output_axes")}
        several[WHOLE] = {**several[WHOLE], **ended}
