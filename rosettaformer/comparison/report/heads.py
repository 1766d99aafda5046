"""Compares hidden states with hidden states, where one side goes on with a head that the other does not have."""

import numpy as np

from . import layouts
from .recorded_calls import WHOLE, Calls


def without_head(calls: Calls) -> str:
    """Lets the side with a head end where the other ends, if no output of one has the shape of one of the other's: at the partner of the
    layer whose output is the other's. Returns a note; empty if both sides end as they are.
    """
    pair = calls.pair(WHOLE, WHOLE)
    shapes = [[array.shape for array in calls.common(call, "outputs")] for call in pair]
    if any(layouts.fit(one, other) or layouts.may_be_transposed(one, other) for one in shapes[0] for other in shapes[1]):
        return ""
    right = {path: other for path, (other, _) in calls.layers.items()}
    for ends, partners in enumerate((right, {other: path for path, other in right.items()})):
        for own in reversed([key for key in calls.by_key[ends]["float32"] if key[0] and key[0] in partners]):
            partner = partners[own[0]], own[1]
            given, other = calls.by_key[ends]["float32"].get(own), calls.by_key[1 - ends]["float32"].get(partner)
            if not (given and other and given["outputs"] and other["outputs"] and pair[ends]["outputs"]):
                continue
            if np.array_equal(given["outputs"][0], pair[ends]["outputs"][0]):
                for several in calls.by_key[1 - ends].values():
                    ended = {what: several[partner][what][:1] for what in ("outputs", "output_axes")}
                    several[WHOLE] = {**several[WHOLE], **ended}
                sides = [side.which for side in calls.sides]
                return f"the {sides[1 - ends]} has a head and the {sides[ends]} has none: it is compared up to {partner[0]}"
    return ""
