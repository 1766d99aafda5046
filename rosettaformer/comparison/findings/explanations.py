"""Explains a comparison: the first difference, its place and form, and where float64 diverges.

Explanations never change the verdict; one that fails is left out.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...common.modules.nests import splits
from ..explaining import Explaining
from . import known_parts, layouts, settings
from .layer_rows import LayerRow, Rows
from .recorded_calls import WHOLE

PROJECTS = ("dense", "rms_norm", "layer_norm")  # layers that feed attention and feed-forward networks
BASE = re.compile("base|theta|wavelength")  # names of the base of rotary positions
AXES = ("rows", "positions", "features")
CLOSE = 1e-4  # relative to the largest number: far above rounding, far below a difference
RUNS = 3  # maximum number of separate ranges; more are gaps where the difference happens to be small
LITTLE = 0.01  # fraction of a difference that a relation may leave unexplained


class Explanations:
    """Explanations of the rows of a comparison."""

    def __init__(self, rows: Rows, explaining: Explaining) -> None:
        self._rows, self._calls, self._explaining = rows, rows.calls, explaining

    def report(self) -> dict[str, Any]:
        """Returns the explanatory part of the report."""
        rows, hidden = self._rows.layers, self._rows.hidden
        unmatched = self._explaining("layers without a partner", self._unmatched) or [[], []]
        found: dict[str, Any] = {"first": None, "elsewhere": [], "unmatched": unmatched, "float64": None}
        if hidden or not self._rows.agree:
            found["first"] = self._explaining("first difference", self._first, hidden or rows)
        else:
            found["elsewhere"] = [row.left for row in rows if row.leaf and row.verdict == "differs"]
            if any(one.verdict == "rounding" for one, _ in self._rows.outputs):
                found["float64"] = self._explaining("float64 divergence", self._parting)
        if one := found["first"]:
            one |= {"where": [], "how": "", "around": self._explaining("enclosing settings", self._around, one) or []}
            one |= self._explaining("place and form of the difference", self._described, one) or {}
        return found

    def _first(self, rows: Sequence[LayerRow]) -> dict[str, Any] | None:
        """Returns the first layer that differs on equal inputs, or the first whose inputs differ
        although all layers before it agree, in the left's execution order; None if nothing differs.
        """
        leaves = [row for row in rows if row.leaf]
        before = None
        for row in leaves:
            differed = before is not None and before.free.verdict == "differs"
            if row.inputs.verdict == row.free.verdict == "differs" and not differed:
                return self._between(before, row)
            wrong = any(one.verdict == "differs" for one in row.forced or [row.free])
            if wrong and not self._made_good(row, leaves):
                found = max(row.forced or [row.free], key=lambda one: one.units)
                wrong_too = [one for one in leaves if any(each.verdict == "differs" for each in one.forced)]
                also = [one.left for one in wrong_too if one is not row]
                return {"what": "layer", "left": row.left, "right": row.right, "call": row.call, "also": also,
                        "units": found.units, "settings": row.settings,
                        "note": found.note or row.note}  # fmt: skip
            before = row
        return self._between(before, None) if self._rows.whole.free.verdict == "differs" else None

    def _made_good(self, row: LayerRow, leaves: Sequence[LayerRow]) -> bool:
        """Returns whether a consumer of the output has equal inputs on both sides, so that only the
        boundary between the layers differs.
        """
        alike = [other for other in leaves if other.inputs.verdict in ("equal", "rounding")]
        pairs = [pair for other in alike for pair in zip(row.gives, other.given, strict=True)]
        return row.free.verdict == "differs" and any(one and one == given for one, given in pairs)

    def _parting(self) -> dict[str, Any] | None:
        """Returns the first layer that differs in float64 and their number, or a place."""
        leaves = [row for row in self._rows.layers if row.leaf]
        found = [row for row in leaves if "rounding" in {one.verdict for one in row.forced}]
        if found:
            return {"first": [found[0].left, found[0].right], "layers": len(found)}
        at = next((number for number, row in enumerate(leaves) if row.inputs.verdict == "rounding"), len(leaves))
        ends = [leaves[at - 1] if at else None, leaves[at] if at < len(leaves) else None]
        return {"layers": 0, "place": [[row.left, row.right] if row else ["", ""] for row in ends]}

    def _described(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Describes where and how outputs of a layer, or inputs after a place, differ."""
        keys = [WHOLE, WHOLE]
        if found["what"] == "layer":
            keys = [(found["left"], found["call"]), (found["right"], found["call"])]
        elif found["before"][0]:
            keys = [(path, 0) for path in found["before"]]
        what = "inputs" if found["what"] == "between" and found["before"][0] else "outputs"
        calls = self._calls.pair(*keys)
        if not all(call and call[what] for call in calls):
            return {}
        common = [self._calls.common(call, what)[:1] for call in calls]
        arrays = self._calls.activated(keys[0][0], keys[1][0], "float32", common)
        pair = arrays[0][0], arrays[1][0]
        how, explaining = "", self._explaining
        if what == "inputs":
            how = explaining("known parts", self._by_the_reference, found["before"], pair) or ""
        if not how and not found["settings"]:
            how = explaining("relation of both", relation, *pair) or ""
        return {"where": explaining("differing positions", places, *pair) or [], "how": how}

    def _around(self, found: Mapping[str, Any]) -> list[str]:
        """Returns the differing settings of the modules around a place, innermost first."""
        place = found["left"] if found["what"] == "layer" else found["before"][0] or found["after"][0]
        holders = [(row.left, row.right) for row in self._rows.layers if not row.leaf and place.startswith(f"{row.left}.")]
        said: dict[str, str] = {}
        for left, right in [*sorted({*holders}, key=lambda pair: -len(pair[0])), ("", "")]:
            for text in sorted({*settings.scalars(self._calls, left, right, set())} - {*found["settings"]}):
                said.setdefault(text, f"{left}: {text}" if left else text)
        return [*said.values()]

    def _by_the_reference(self, before: Sequence[str], pair: Sequence[np.ndarray]) -> str:
        """Describes the inputs of a layer as known functions of the outputs before it."""
        layers, networks = self._calls.layers, self._calls.networks
        given: dict[str, np.ndarray] = {}
        known = {other: path for path, (other, _) in layers.items()}
        calls = [side["float32"] for side in self._calls.by_key]
        ordered = [list(side) for side in calls]
        for path, index in ordered[1][: ordered[1].index((before[1], 0))]:  # parts that the left computes in one layer
            if index == 0 and path in known and (known[path], 0) not in calls[0]:
                given[known[path]] = calls[1][path, 0]["outputs"][0]
        for path, index in ordered[0][: ordered[0].index((before[0], 0))]:
            if index == 0 and path in layers and networks[0].kind(path) in PROJECTS:
                given |= {path: calls[0][path, 0]["outputs"][0]}
        words = {path: networks[0].words[path] + networks[1].words[layers[path][0]] for path in given}
        scalars = [value for network in networks for layer in network.layers.values() for value in layer["scalars"].items()]
        bases = [float(value) for name, value in scalars if isinstance(value, (int, float)) and BASE.search(name)]
        return known_parts.said(given, words, pair, bases)

    def _unmatched(self) -> list[list[str]]:
        """Returns the called layers without a partner, on the left and on the right."""
        layers = self._calls.layers
        taken = {other for other, _ in layers.values()}
        return [
            [path for path in network.leaves() if path not in known]
            for network, known in zip(self._calls.networks, (layers, taken), strict=True)
        ]

    def _between(self, before: LayerRow | None, after: LayerRow | None) -> dict[str, Any]:
        """Returns a difference between two matched layers: functions, or layers without a partner."""
        lone = []
        for network, several, which in zip(self._calls.networks, self._unmatched(), ("left", "right"), strict=True):
            ends = [network.order.index(getattr(row, which)) if row else None for row in (before, after)]
            within = network.order[slice(*ends)]
            lone.append([path for path in several if path in within])
        places = [[row.left, row.right] if row else ["", ""] for row in (before, after)]
        # An input of another shape may be padded before the layer on one side and inside it on the other, so
        # that the layer itself can be the cause.
        padded = after is not None and after.inputs.shapes
        said = [text for row in (before, after) if row for text in row.settings
                if text.startswith("activation") or (padded and row is after)]  # fmt: skip
        return {"what": "between", "after": places[0], "before": places[1], "unmatched": lone,
                "settings": said, "units": after.inputs.units if after else None}  # fmt: skip


def places(left: np.ndarray, right: np.ndarray) -> list[str]:
    """Returns the differing ranges along each axis of `b t d`, such as "positions 1 to 6 of 7",
    unless all differ.
    """
    left, right = _shaped(left, right)
    if left.shape != right.shape or left.ndim != len(AXES) or left.dtype.kind != "f":
        return []
    wrong = ~(np.abs(left - right) <= CLOSE * np.abs(left).max(initial=0.0))
    found = []
    for axis, name in enumerate(AXES):
        hit = np.flatnonzero(wrong.any(axis=tuple(other for other in range(len(AXES)) if other != axis)))
        runs = np.split(hit, np.flatnonzero(np.diff(hit) > 1) + 1)
        if 0 < len(hit) < left.shape[axis] and len(runs) <= RUNS:
            ranges = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
            found.append(f"{name} {', '.join(ranges)} of {left.shape[axis]}")
    return found


def relation(left: np.ndarray, right: np.ndarray) -> str:
    """Returns the left as a transpose, multiple, offset or permutation of the right."""
    order = layouts.transposition(left, right)
    if order and layouts.agree(left, right.transpose(order)):
        return f"the left is the right with its axes transposed to {' '.join(map(str, order))}"
    left, right = _shaped(left, right)
    if left.shape != right.shape or left.ndim < 2 or left.dtype.kind != "f" or not right.any():
        return ""
    one, other = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (left, right))
    much = LITTLE * float(np.abs(one - other).max())  # the largest error that counts as explained
    factor = float((one * other).sum() / (other * other).sum())
    if float(np.abs(one - factor * other).max()) <= much:
        return f"the left is {factor:.6g} times the right"
    if len(one) > 1 and float(np.abs((one - other) - (one - other)[0]).max()) <= much:
        return "the left is the right plus the same vector at every position, like a bias"
    sorted_one, sorted_other = (rows[:, np.argsort(rows[0], kind="stable")] for rows in (one, other))
    if len(one) > 1 and float(np.abs(sorted_one - sorted_other).max()) <= much:
        return "the left has the features of the right in a different order"
    return ""


def _shaped(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns both in the shape of the one with fewer axes, if it only joins axes of the other."""
    if left.shape != right.shape and splits(left.shape, right.shape):
        shape = min(left.shape, right.shape, key=len)
        return left.reshape(shape), right.reshape(shape)
    return left, right
