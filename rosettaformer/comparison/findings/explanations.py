"""Explains a comparison: the first difference, its place and form, and where float64 diverges.

Explanations never change the verdict; one that fails is left out.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..explaining import Explaining
from ..matching import relations
from ..matching.relations import Relation
from . import known_parts, layer_functions, settings
from .layer_rows import LayerRow, Rows
from .recorded_calls import NOTHING, WHOLE

PROJECTS = ("dense", "convolution", "rms_norm", "layer_norm", "batch_norm")  # layers that feed attention and feed-forward networks
SAME_WEIGHTS = "the weights are equal, but the layers compute something else with them"
RESIDUALS = 8  # layers before a place whose inputs may be its residual
BASE = re.compile("base|theta|wavelength")  # names of the base of rotary positions


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
            one |= {"where": [], "how": "", "relation": "", "around": self._explaining("enclosing settings", self._around, one) or []}
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
            before = row if row.free.verdict != NOTHING.verdict else before
        return self._between(before, None) if self._rows.whole.free.verdict == "differs" else None

    def _made_good(self, row: LayerRow, leaves: Sequence[LayerRow]) -> bool:
        """Returns whether a consumer of the output has equal inputs on both sides, so that only the
        boundary between the layers differs.
        """
        alike = [other for other in leaves if other.inputs.verdict in ("equal", "rounding")]
        pairs = [(*each, own) for other in alike for *each, own in zip(row.gives, other.given, row.given, strict=True)]
        # the output of a side that returns its input is not the output that was made good
        return row.free.verdict == "differs" and any(one and one == given != own for one, given, own in pairs)

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
        explaining = self._explaining
        how = relations.NONE
        if found["what"] == "between":
            known = explaining("known parts", self._by_the_reference, found, pair) or ""
            how = relations.NONE if known_parts.UNKNOWN in known else Relation("functions", known)
            how = how or explaining("relation of both", relations.relation, *pair) or how
            how = how or explaining("relation without a residual", self._without_residual, found, pair) or how
            how = how or Relation("functions", known)  # of one side
        else:
            how = explaining("identity", layer_functions.unchanged, self._calls, keys, pair) or how
        if found["what"] == "layer" and not how and not found["settings"]:
            weights = any(row["layer"] == found["left"] and row["left"] and row["right"] for row in self._rows.table)
            how = explaining("the layer's function", layer_functions.said, self._calls, keys, pair, weights) or how
            how = how or explaining("relation of both", relations.relation, *pair) or Relation("equal weights", SAME_WEIGHTS * weights)
        stored = next((row["relation"]["id"] for row in self._rows.table if row["layer"] == keys[0][0] and row.get("relation")), "")
        return {
            "where": explaining("differing positions", relations.places, *pair) or [],
            "how": how.text,
            "relation": how.id if how else stored,
        }

    def _without_residual(self, found: Mapping[str, Any], pair: Sequence[np.ndarray]) -> Relation:
        """Relates both arrays minus an equal array that runs past the place."""
        before = self._before(found)
        for row in reversed(before[-RESIDUALS:]):
            base = self._calls.input_of(0, row.left)
            if base is None or row.inputs.verdict == "differs" or base.size != pair[0].size or base.dtype.kind != "f":
                continue
            left, right = (array - base.reshape(array.shape) for array in pair)
            if said := relations.relation(left, right):
                calls = [call for row in before for call in self._calls.pair((row.left, 0), (row.right, 0))]
                logits = [array for call in calls for array in call["outputs"][:1]]
                experts = known_parts.routed(logits, left, right)
                text = f"apart from the input of {row.left}, {experts or said.text}"
                return Relation("experts" if experts else said.id, text)
        return relations.NONE

    def _before(self, found: Mapping[str, Any]) -> list[LayerRow]:
        """Returns the rows of the layers before a place."""
        leaves = [row for row in self._rows.layers if row.leaf and not row.call]
        ends = [number for number, row in enumerate(leaves) if row.left == found["before"][0]]
        return leaves[: ends[0]] if ends else leaves

    def _around(self, found: Mapping[str, Any]) -> list[str]:
        """Returns the differing settings of the modules around a place, innermost first."""
        place = found["left"] if found["what"] == "layer" else found["before"][0] or found["after"][0]
        holders = [(row.left, row.right) for row in self._rows.layers if not row.leaf and place.startswith(f"{row.left}.")]
        said: dict[str, str] = {}
        for left, right in [*sorted({*holders}, key=lambda pair: -len(pair[0])), ("", "")]:
            for text in sorted({*settings.scalars(self._calls, left, right, set())} - {*found["settings"]}):
                said.setdefault(text, f"{left}: {text}" if left else text)
        return [*said.values()]

    def _by_the_reference(self, found: Mapping[str, Any], pair: Sequence[np.ndarray]) -> str:
        """Describes the inputs of a layer as known functions of the outputs before it."""
        before = found["before"]
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
                given |= {path: self._calls.common(calls[0][path, 0], "outputs")[0]}
        words = {path: networks[0].words[path] + networks[1].words[layers[path][0]] for path in given}
        scalars = [value for network in networks for layer in network.layers.values() for value in layer["scalars"].items()]
        bases = [float(value) for name, value in scalars if isinstance(value, (int, float)) and BASE.search(name)]
        around: dict[str, np.ndarray] = {}
        for row in self._before(found)[-RESIDUALS:]:
            call = self._calls.pair((row.left, 0), (row.right, 0))[0]
            named = (f"the input of {row.left}", call["inputs"]), (row.left, call["outputs"])
            around |= {name: arrays[0] for name, arrays in named if arrays and arrays[0].dtype.kind == "f"}
        return known_parts.said(given, words, pair, bases, around)

    def _unmatched(self) -> list[list[str]]:
        """Returns the called layers without a called partner, on the left and on the right."""
        left, right = self._calls.networks
        pairs = [(one.partition("[")[0], other.partition("[")[0]) for one, (other, _) in self._calls.layers.items()]  # without parts
        pairs = [(one, other) for one, other in pairs if one in left.order and other in right.order]
        return [
            [path for path in network.leaves() if path not in known]
            for network, known in zip((left, right), zip(*pairs, strict=True), strict=True)
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
