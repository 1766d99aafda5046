"""Rows of matched layers: as they run, and each on the other side's inputs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import axes
from ..engine.process import Failed
from ..explaining import Explaining
from ..matching.variable_matching import Pair
from . import settings
from .noise import Difference
from .recorded_calls import DTYPES, WHOLE, Calls, Key, first_of

ORDER = ("equal", "not comparable", "rounding", "differs")


@dataclasses.dataclass
class LayerRow:
    """One call of a matched layer.

    free: difference of the outputs in the models; inputs: difference of their inputs; forced:
    difference of the outputs on the left's inputs, and on the right's. settings: differing
    settings. leaf: whether it contains no other matched layer. given, gives: hashes of the first
    input and output, on the left and on the right.
    """

    left: str
    right: str
    kind: str
    call: int
    shape: list[int]
    leaf: bool
    free: Difference
    inputs: Difference
    forced: list[Difference]
    settings: list[str]
    given: list[int]
    gives: list[int]
    note: str = ""

    @property
    def verdict(self) -> str:
        return worst(self.forced).verdict if self.forced else self.free.verdict

    @property
    def has_another_epsilon(self) -> bool:
        """Returns whether epsilon makes it differ on equal inputs, without compensation."""
        return self.leaf and self.verdict == "differs" and any(text.startswith("epsilon ") for text in self.settings)

    def plain(self) -> dict[str, Any]:
        named = {"free": self.free.plain(), "inputs": self.inputs.plain(), "forced": [one.plain() for one in self.forced]}
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in ("given", "gives")}
        return fields | named | {"verdict": self.verdict}


def worst(found: Sequence[Difference]) -> Difference:
    """Returns the worst difference."""
    return max(found, key=lambda one: (ORDER.index(one.verdict), one.units), default=Difference("not comparable", note="no arrays"))


class Rows:
    """The compared outputs and layers of two models.

    outputs: their differences, and the transposition of each. agree: whether all agree in float32.
    undecided: whether near ties decide some of their numbers. layers: the rows, in the left's
    execution order. whole: the row of the models themselves. hidden: rows with a different epsilon
    that rounding hides in the outputs.
    """

    def __init__(self, calls: Calls, table: Sequence[Pair], explaining: Explaining) -> None:
        self.calls, self.table, self._explaining = calls, table, explaining
        self._failed: Failed | None = None
        self.outputs = calls.but_for_jumps(calls.judged_outputs())
        self.undecided = any(one.jumps for one, _ in self.outputs)
        self.agree = all(one.verdict != "differs" for one, _ in self.outputs)
        rows = [explaining(f"layer {key[0]}", self._row, key) for key in calls.by_key[0]["float32"]]
        free, (given, gives) = worst([one for one, _ in self.outputs]), self._told(WHOLE, WHOLE)
        nothing = Difference("not comparable")
        self.whole = LayerRow("", "", "", 0, [], False, free, nothing, [], [], given, gives)
        self.layers = [row for row in rows if row]
        try:
            self._force([row for row in self.layers if row.leaf and not self._is_given_otherwise(row)])
        except Failed as error:
            self._failed = error
        self.hidden = [row for row in self.layers if row.has_another_epsilon] if self.agree else []

    def report(self) -> dict[str, Any]:
        """Returns the part of the report that decides the verdict."""
        outputs = [one.plain() | ({"transposed": [*order]} if order else {}) for one, order in self.outputs]
        return {"layers": [row.plain() for row in self.layers], "outputs": outputs, "hidden": [row.left for row in self.hidden]}

    def require_alive(self) -> None:
        """Raises Failed if the process of a side has ended."""
        if self._failed:
            raise self._failed

    def _row(self, key: Key) -> LayerRow | None:
        """Returns the row of a call of the left; None if the right has no such call."""
        calls, (path, index) = self.calls, key
        other = calls.layers.get(path, ("",))[0]
        if not path or not other or None in calls.pair(key, (other, index)):
            return None
        known = (path, calls.layers), (other, [name for name, _ in calls.layers.values()])
        leaf = not any(one.startswith(f"{own}.") for own, several in known for one in several)
        keys = key, (other, index)
        shape = next((list(array.shape) for array in calls.common(calls.pair(*keys)[0], "outputs")), [])
        kind = calls.networks[0].kind(path) or calls.networks[0].layers.get(path, {}).get("type", "")
        differ = self._explaining(f"settings of {path}", settings.differing, calls, self.table, path, other) or []
        free, inputs = (worst(calls.differences(*keys, what)) for what in ("outputs", "inputs"))
        given, gives = self._told(*keys)
        return LayerRow(path, other, kind, index, shape, leaf, free, inputs, [], differ, given, gives)

    def _told(self, *keys: Key) -> list[list[int]]:
        """Returns the hashes of the first input and of the first output, on both sides."""
        calls = self.calls.pair(*keys)
        return [[hash(call[what][0].tobytes()) if call[what] else 0 for call in calls] for what in ("inputs", "outputs")]

    def _is_given_otherwise(self, row: LayerRow) -> bool:
        """Returns whether one side gets integers and the other floats, and notes it in the row."""
        first = [next(iter(call["inputs"]), None) for call in self.calls.pair((row.left, row.call), (row.right, row.call))]
        dtypes = [array.dtype for array in first if array is not None]
        if len({dtype.kind == "f" for dtype in dtypes}) < 2:
            return False
        row.note = f"the input is {dtypes[0]} on the left, {dtypes[1]} on the right"
        return True

    def _force(self, leaves: Sequence[LayerRow]) -> None:
        """Runs every leaf on the other side's inputs in both dtypes, and on its own in float64."""
        keys = [[(row.left, row.call) for row in leaves], [(row.right, row.call) for row in leaves]]
        given = [[self.calls.by_key[which]["float32"][key] for key in keys[which]] for which in (0, 1)]
        answers: list[dict[str, list[Any]]] = [{}, {}]
        for which, side in enumerate(self.calls.sides):
            own = [(*key, call["inputs"]) for key, call in zip(keys[which], given[which], strict=True)]
            others = [
                (*key, self._explaining(f"inputs of {key[0]}", self._exchanged, call, other) or [])
                for key, call, other in zip(keys[which], given[which], given[1 - which], strict=True)
            ]
            answers[which] = {"narrow": side.call("force", others, "float32"), "wide": side.call("force", others, "float64"),
                              "own": side.call("force", own, "float64")}  # fmt: skip
        for number, row in enumerate(leaves):
            for owner in (0, 1):  # the side that provides the inputs
                what = f"layer {row.left} on the other side's input"
                row.forced += self._explaining(what, self._judged, row, owner, number, keys, answers) or []

    def _exchanged(self, call: Mapping[str, Any], other: Mapping[str, Any]) -> list[np.ndarray]:
        """Returns the other side's inputs in this side's order of axes."""
        arrays = self.calls.common(other, "inputs")
        if len(arrays) != len(call["inputs"]) and len(first_of(arrays, "inputs")) == len(first_of(call["inputs"], "inputs")) == 1:
            arrays = arrays[:1] * len(call["inputs"])
        tags = call["input_axes"] if len(call["input_axes"]) == len(arrays) else [None] * len(arrays)
        return [axes.from_common(array, tag, self.calls.ranks) for array, tag in zip(arrays, tags, strict=True)]

    def _judged(
        self, row: LayerRow, owner: int, number: int, keys: Sequence[Sequence[Key]], answers: Sequence[Mapping[str, list[Any]]]
    ) -> list[Difference]:
        """Returns the difference on one side's inputs; empty if a layer cannot run on them."""
        forced = 1 - owner
        narrow: list[Any] = [None, None]
        wide: list[Any] = [None, None]
        calls = [self.calls.by_key[which]["float32"][keys[which][number]] for which in (0, 1)]
        narrow[owner], narrow[forced] = calls[owner]["outputs"], answers[forced]["narrow"][number]
        wide[owner], wide[forced] = answers[owner]["own"][number], answers[forced]["wide"][number]
        if failed := next((text for text in (*narrow, *wide) if isinstance(text, str)), ""):
            row.note = row.note or f"cannot run on the other side's input: {failed}"
            return []
        if self.calls.networks[0].kind(row.left) == "attention" or 1 in map(len, narrow):
            narrow, wide = [several[:1] for several in narrow], [several[:1] for several in wide]
        if len({len(several) for several in (*narrow, *wide)}) != 1:
            return []

        def common(which: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
            tags = calls[which]["output_axes"]
            return [axes.to_common(array, tag, self.calls.ranks) for array, tag in zip(arrays, tags, strict=False)]

        pairs = [
            self.calls.activated(row.left, row.right, dtype, [common(which, several[which]) for which in (0, 1)])
            for dtype, several in zip(DTYPES, (narrow, wide), strict=True)
        ]
        return [worst([self.calls.difference(*four) for four in zip(*pairs[0], *pairs[1], strict=True)])]
