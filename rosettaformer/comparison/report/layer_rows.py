"""The layers of both sides beside each other: as they run, and each of them given the other's input."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...modules.nests import splits
from .. import axes, kinds
from ..matching.layer_matching import Network
from ..matching.variable_matching import Pair
from ..running.side_process import Process
from . import known_parts
from .first_divergence import first
from .noise import Difference, difference
from .places import places, relation

NOTHING = Difference("not comparable")
PROJECTS = ("dense", "rms_norm", "layer_norm")  # the kinds of layers that give attention and feed-forward networks their inputs
BASE = re.compile("base|theta|wavelength")  # of rotary positions
ORDER = ("equal", "not comparable", "rounding", "differs")


@dataclasses.dataclass
class LayerRow:
    """A layer's call. free: the outputs as both sides run; inputs: what they were given there; forced: the outputs where the right is given
    the left's inputs, and the other way round. settings: which differ. leaf: no other matched layer is within it. given, gives: what tells
    the first input and the output apart, on the left and on the right."""

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
        """Whether it gives something else for the same input and has another epsilon, which other layers do not make good."""
        return self.leaf and self.verdict == "differs" and any(text.startswith("epsilon ") for text in self.settings)

    def plain(self) -> dict[str, Any]:
        named = {"free": self.free.plain(), "inputs": self.inputs.plain(), "forced": [one.plain() for one in self.forced]}
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in ("given", "gives")}
        return fields | named | {"verdict": self.verdict}


def worst(found: Sequence[Difference]) -> Difference:
    """The one that is furthest from equal."""
    return max(found, key=lambda one: (ORDER.index(one.verdict), one.units), default=Difference("not comparable", note="there is nothing"))


class Rows:
    """runs: by dtype, of both sides the calls and why there is no float64. notes: what cannot be compared, and why."""

    def __init__(
        self, sides: Sequence[Process], networks: Sequence[Network], layers: Mapping[str, tuple[str, str]], table: Sequence[Pair],
        runs: Mapping[str, Sequence[Any]], ranks: Sequence[str],
    ) -> None:  # fmt: skip
        self._sides, self._networks, self._layers, self._table, self._ranks = sides, networks, layers, table, ranks
        self._calls = [
            {dtype: {(call["path"], call["index"]): call for call in runs[dtype][which][0]} for dtype in runs} for which in (0, 1)
        ]
        self.wide = [not runs["float64"][which][1] for which in (0, 1)]
        self.notes = [
            f"{side.side.text} has no float64: {runs['float64'][which][1]}" for which, side in enumerate(sides) if runs["float64"][which][1]
        ]

    _dtypes = ("float32", "float64")

    def report(self) -> dict[str, Any]:
        """The rows, the outputs, and what diverges first."""
        rows = list(self._rows())
        self._force(rows)
        output = next(row for row in rows if row.left == "")
        rows.remove(output)
        outputs = self._differences(("", 0), ("", 0), "outputs")
        if all(one.verdict == "not comparable" for one in outputs):
            raise ValueError(f"the output cannot be compared: {outputs[0].note if outputs else 'it has no array'}")
        agree = all(one.verdict != "differs" for one in outputs)
        hidden = [row for row in rows if row.has_another_epsilon] if agree else []
        found = first(hidden or rows, output, self._between) if hidden or not agree else None
        if found:
            found |= self._described(found, rows) | {"around": self._around(found, rows)}
        elsewhere = [row.left for row in rows if row.leaf and row.verdict == "differs" and row not in hidden] if agree else []
        return {"layers": [row.plain() for row in rows], "outputs": [one.plain() for one in outputs], "first": found,
                "elsewhere": elsewhere, "unmatched": self._unmatched()}  # fmt: skip

    def _described(self, found: Mapping[str, Any], rows: Sequence[LayerRow]) -> dict[str, Any]:
        """Says where the outputs of the layer differ, or the inputs after the place between two, and how."""
        keys = [("", 0), ("", 0)]
        if found["what"] == "layer":
            keys = [(found["left"], found["call"]), (found["right"], found["call"])]
        elif found["before"][0]:
            keys = [(path, 0) for path in found["before"]]
        what = "inputs" if found["what"] == "between" and found["before"][0] else "outputs"
        calls = [side["float32"][key] for side, key in zip(self._calls, keys, strict=True) if key in side["float32"]]
        if len(calls) < len(keys) or not all(call[what] for call in calls):
            return {"where": [], "how": ""}
        arrays = self._activated(keys[0][0], keys[1][0], "float32", [self._common(call, what)[:1] for call in calls])
        pair = arrays[0][0], arrays[1][0]
        how = self._by_the_reference(found["before"], pair) if what == "inputs" else ""
        return {"where": places(*pair), "how": how or ("" if found["settings"] else relation(*pair))}

    def _around(self, found: Mapping[str, Any], rows: Sequence[LayerRow]) -> list[str]:
        """Says which numbers and texts of what holds the place differ, from the innermost: attention and its config, the whole model."""
        place = found["left"] if found["what"] == "layer" else found["before"][0] or found["after"][0]
        holders = [(row.left, row.right) for row in rows if not row.leaf and place.startswith(f"{row.left}.")]
        said: dict[str, str] = {}
        for left, right in [*sorted({*holders}, key=lambda pair: -len(pair[0])), ("", "")]:
            for text in sorted({*self._scalars(left, right, set())} - {*found["settings"]}):
                said.setdefault(text, f"{left}: {text}" if left else text)
        return [*said.values()]

    def _by_the_reference(self, before: Sequence[str], pair: Sequence[np.ndarray]) -> str:
        """Says what the reference makes of what agrees before a layer whose inputs differ."""
        given: dict[str, np.ndarray] = {}
        known = {other: path for path, (other, _) in self._layers.items()}
        ordered = [list(side["float32"]) for side in self._calls]
        for path, index in ordered[1][: ordered[1].index((before[1], 0))]:  # what the left computes side by side
            if index == 0 and path in known and (known[path], 0) not in self._calls[0]["float32"]:
                given[known[path]] = self._calls[1]["float32"][path, 0]["outputs"][0]
        for path, index in ordered[0][: ordered[0].index((before[0], 0))]:
            if index == 0 and path in self._layers and self._networks[0].kind(path) in PROJECTS:
                given |= {path: self._calls[0]["float32"][path, 0]["outputs"][0]}
        words = {path: self._networks[0].words[path] + self._networks[1].words[self._layers[path][0]] for path in given}
        scalars = [value for network in self._networks for layer in network.layers.values() for value in layer["scalars"].items()]
        bases = [float(value) for name, value in scalars if isinstance(value, (int, float)) and BASE.search(name)]
        return known_parts.said(given, words, pair, bases)

    def input_of(self, which: int, path: str) -> np.ndarray | None:
        """The first input of a layer in float32, in the common order of axes."""
        call = self._calls[which]["float32"].get((path, 0))
        return self._common(call, "inputs")[0] if call and call["inputs"] else None

    def setting(self, which: int, path: str, name: str) -> Any:
        return self._networks[which].layers.get(path, {}).get("hyperparameters", {}).get(name)

    def cotangents(self, seed: int) -> list[list[np.ndarray]]:
        """Returns random cotangents of the floating outputs, the same for both sides; zeros for an output that the other side has not."""
        calls = [side["float32"]["", 0] for side in self._calls]
        several = [self._common(call, "outputs") for call in calls]
        cotangents: list[dict[int, np.ndarray]] = [{}, {}]
        rng = np.random.default_rng([seed, 1])
        for left, right in self._outputs:
            shapes = several[0][left].shape, several[1][right].shape
            array = rng.standard_normal(shapes[0]).astype(np.float32)
            cotangents[0][left], cotangents[1][right] = array, array.reshape(shapes[1])
        return [
            [
                axes.from_common(own.get(index, np.zeros_like(array)), tag, self._ranks)
                for index, (array, tag) in enumerate(zip(arrays, call["output_axes"], strict=True))
                if array.dtype.kind == "f"
            ]
            for own, arrays, call in zip(cotangents, several, calls, strict=True)
        ]

    @functools.cached_property
    def _outputs(self) -> list[tuple[int, int]]:
        """Returns which outputs are compared with which: in their order, or where the sides have others those of one shape.

        Raises ValueError if no two have one shape.
        """
        shapes = [[array.shape for array in self._common(side["float32"]["", 0], "outputs")] for side in self._calls]
        if len(shapes[0]) == len(shapes[1]) and all(itertools.starmap(_fit, zip(*shapes, strict=True))):
            return [(index, index) for index in range(len(shapes[0]))]
        free, found = dict(enumerate(shapes[1])), []
        for left, shape in enumerate(shapes[0]):
            right = next((index for index, other in free.items() if _fit(shape, other)), None)
            if right is not None:
                found.append((left, right))
                del free[right]
        if not found:
            raise ValueError(f"outputs must have the same shapes; got {shapes[0]} on the left, {shapes[1]} on the right")
        for which, several in (("left", [index for index, _ in found]), ("right", [index for _, index in found])):
            own = shapes[which == "right"]
            if spare := [str(shape) for index, shape in enumerate(own) if index not in several]:
                self.notes.append(f"not compared: outputs that the {which} alone has, of shapes {', '.join(spare)}")
        return found

    def _common(self, call: Mapping[str, Any], what: str) -> list[np.ndarray]:
        tags = call[f"{what[:-1]}_axes"]
        return [axes.to_common(array, tag, self._ranks) for array, tag in zip(call[what], tags, strict=True)]

    def _rows(self) -> Iterator[LayerRow]:
        left = self._networks[0]
        known = [[path for path in self._layers if path], [other for other, _ in self._layers.values() if other]]
        for path, index in self._calls[0]["float32"]:
            if path not in self._layers:
                continue
            other, _ = self._layers[path]
            if (other, index) not in self._calls[1]["float32"]:
                continue
            leaf = all(not _holds(own, several) for own, several in zip((path, other), known, strict=True))
            keys = (path, index), (other, index)
            outputs = self._differences(*keys, "outputs")
            shape = next((list(array.shape) for array in self._common(self._calls[0]["float32"][keys[0]], "outputs")), [])
            given, gives = self._told(*keys)
            yield LayerRow(
                path, other, left.kind(path) or left.layers.get(path, {}).get("type", ""), index, shape, leaf and bool(path),
                worst(outputs), worst(self._differences(*keys, "inputs")), [], self._settings(path, other), given, gives,
            )  # fmt: skip

    def _differences(self, left: tuple[str, int], right: tuple[str, int], what: str) -> list[Difference]:
        found = []
        for dtype in ("float32", "float64"):
            calls = self._calls[0][dtype].get(left), self._calls[1][dtype].get(right)
            found.append([self._common(call, what) if call else [] for call in calls])
        if left == right == ("", 0) and what == "outputs":
            found = [[[several[pair[which]] for pair in self._outputs] for which, several in enumerate(both)] for both in found]
        shapes = {array.shape for several in found[0] for array in several[:1]}
        alike = len(shapes) == 1 and 1 in map(len, found[0])  # a graph leaves out what nothing reads
        if len(found[0][0]) != len(found[0][1]) and (what == "inputs" or alike or self._networks[0].kind(left[0]) == "attention"):
            found = [[_first(several, what) for several in pair] for pair in found]
        if len(found[0][0]) != len(found[0][1]):
            return [Difference("not comparable", note=f"{len(found[0][0])} arrays on the left, {len(found[0][1])} on the right")]
        pairs = zip(self._dtypes, found, strict=True)
        arrays = [self._activated(left[0], right[0], dtype, both) if what == "outputs" else both for dtype, both in pairs]
        return [self._difference(*four) for four in zip(*arrays[0], *arrays[1], strict=True)]

    def _difference(self, left: np.ndarray, right: np.ndarray, left_wide: np.ndarray, right_wide: np.ndarray) -> Difference:
        if left.shape != right.shape and _repeats(left, right):  # one side computes once for all rows
            (left, right), (left_wide, right_wide) = (np.broadcast_arrays(*pair) for pair in ((left, right), (left_wide, right_wide)))
        found = difference(left, right, left_wide if self.wide[0] else None, right_wide if self.wide[1] else None)
        if found.shapes and left.size == right.size:
            return dataclasses.replace(NOTHING, note=f"laid out in another way: {found.note}")
        return found

    def _activated(self, left: str, right: str, dtype: str, arrays: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        """Returns the outputs of both after the activation, if one layer contains it and the other does not: the side's own is applied."""
        names = [self.setting(which, path, "activation") for which, path in enumerate((left, right))]
        if None in names or names[0] == names[1] or "linear" not in names:
            return arrays
        plain = names.index("linear")
        active = self._sides[1 - plain].call("activate", (left, right)[1 - plain], arrays[plain], dtype)
        return [active if which == plain and active is not None else several for which, several in enumerate(arrays)]

    def _told(self, *keys: tuple[str, int]) -> list[list[int]]:
        """Returns what tells first inputs and outputs apart, on both sides."""
        calls = [side["float32"][key] for side, key in zip(self._calls, keys, strict=True)]
        return [[hash(call[what][0].tobytes()) if call[what] else 0 for call in calls] for what in ("inputs", "outputs")]

    def _settings(self, left: str, right: str) -> list[str]:
        """Says which of the layers' hyperparameters differ."""
        own = [network.layers.get(path, {}).get("hyperparameters", {}) for network, path in zip(self._networks, (left, right), strict=True)]
        given = [self.input_of(which, path) for which, path in enumerate((left, right))]
        kind = self._networks[0].kind(left)
        numbers = [
            kinds.resolved(kind, values, list(array.shape[1:-1]) if array is not None else [])
            for values, array in zip(own, given, strict=True)
        ]
        said = []
        alone = [row for row in self._table if row["layer"] == (left if row["left"] else right) and not (row["left"] and row["right"])]
        lacking = {(row["left"] or row["right"]).rpartition(".")[2] for row in alone} | {row.get("role") for row in alone}
        for name in sorted((own[0].keys() & own[1].keys()) - lacking):
            if not _same(numbers[0][name], numbers[1][name]):
                texts = [
                    _text(number) if number == value else f"{_text(value)} = {_text(number)}"
                    for number, value in ((numbers[which][name], own[which][name]) for which in (0, 1))
                ]
                said.append(f"{name} {texts[0]} on the left, {texts[1]} on the right")
        said += self._scalars(left, right, {*own[0]} | {*own[1]})
        said += [f"{row['left']} holds other numbers" for row in self._table if row["layer"] == left and row.get("other numbers")]
        for row in alone:
            has, lacks = ("left", "right") if row["left"] else ("right", "left")
            said.append(f"{row[has].rpartition('.')[2]} on the {has}, none on the {lacks}")
        return said

    def _scalars(self, left: str, right: str, said: set[str]) -> list[str]:
        """Says which attributes of one name differ, but for those that are said already."""
        own = [network.layers.get(path, {}).get("scalars", {}) for network, path in zip(self._networks, (left, right), strict=True)]
        return [
            f"{name} {_text(value)} on the left, {_text(own[1][name])} on the right"
            for name, value in own[0].items()
            if name in own[1] and name not in said and not ("epsilon" in said and "eps" in name) and not _same(value, own[1][name])
        ]

    def _unmatched(self) -> list[list[str]]:
        """Returns the layers that are called and have no counterpart, on the left and on the right."""
        taken = {other for other, _ in self._layers.values()}
        return [
            [path for path in network.leaves() if path not in known]
            for network, known in zip(self._networks, (self._layers, taken), strict=True)
        ]

    def _between(self, before: LayerRow | None, after: LayerRow | None) -> list[list[str]]:
        """Returns the layers without a counterpart that either side calls after one row and before the other."""
        found = []
        for network, several, which in zip(self._networks, self._unmatched(), ("left", "right"), strict=True):
            ends = [network.order.index(getattr(row, which)) if row else None for row in (before, after)]
            found.append([path for path in several if network.order.index(path) in range(*slice(*ends).indices(len(network.order)))])
        return found

    def _force(self, rows: Sequence[LayerRow]) -> None:
        """Gives every layer without layers the other's inputs, in both dtypes, and its own in float64."""
        leaves = [row for row in rows if row.leaf and not self._is_given_otherwise(row)]
        keys = [[(row.left, row.call) for row in leaves], [(row.right, row.call) for row in leaves]]
        given = [[self._calls[which]["float32"][key] for key in keys[which]] for which in (0, 1)]
        answers: list[dict[str, list[Any]]] = [{}, {}]
        for which, side in enumerate(self._sides):
            own = [(*key, call["inputs"]) for key, call in zip(keys[which], given[which], strict=True)]
            others = [
                (*key, self._exchanged(call, other)) for key, call, other in zip(keys[which], given[which], given[1 - which], strict=True)
            ]
            answers[which] = {"narrow": side.call("force", others, "float32"), "wide": side.call("force", others, "float64"),
                              "own": side.call("force", own, "float64")}  # fmt: skip
        for number, row in enumerate(leaves):
            for owner in (0, 1):  # whose inputs they are
                self._judge(row, owner, number, keys, answers)

    def _is_given_otherwise(self, row: LayerRow) -> bool:
        """Whether one side's layer is given integers and the other's floats, as positions and what is added to them; says so in the row."""
        pair = zip(self._calls, ((row.left, row.call), (row.right, row.call)), strict=True)
        first = [next(iter(side["float32"][key]["inputs"]), None) for side, key in pair]
        dtypes = [array.dtype for array in first if array is not None]
        if len({dtype.kind == "f" for dtype in dtypes}) < 2:
            return False
        row.note = f"is given {dtypes[0]} on the left, {dtypes[1]} on the right"
        return True

    def _exchanged(self, call: Mapping[str, Any], other: Mapping[str, Any]) -> list[np.ndarray]:
        """The other's inputs in the axes of the side's own."""
        arrays = self._common(other, "inputs")
        if len(arrays) != len(call["inputs"]) and len(_first(arrays, "inputs")) == len(_first(call["inputs"], "inputs")) == 1:
            arrays = arrays[:1] * len(call["inputs"])
        tags = call["input_axes"] if len(call["input_axes"]) == len(arrays) else [None] * len(arrays)
        return [axes.from_common(array, tag, self._ranks) for array, tag in zip(arrays, tags, strict=True)]

    def _judge(self, row: LayerRow, owner: int, number: int, keys: Any, answers: Sequence[Mapping[str, list[Any]]]) -> None:
        forced = 1 - owner
        narrow: list[Any] = [None, None]
        wide: list[Any] = [None, None]
        calls = [self._calls[which]["float32"][keys[which][number]] for which in (0, 1)]
        narrow[owner], narrow[forced] = calls[owner]["outputs"], answers[forced]["narrow"][number]
        wide[owner], wide[forced] = answers[owner]["own"][number], answers[forced]["wide"][number]
        if failed := next((text for text in (*narrow, *wide) if isinstance(text, str)), ""):
            row.note = row.note or f"cannot be given the other's input: {failed}"
            return
        if self._networks[0].kind(row.left) == "attention":
            narrow, wide = [several[:1] for several in narrow], [several[:1] for several in wide]
        if len({len(several) for several in (*narrow, *wide)}) != 1:
            return

        def common(which: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
            return [axes.to_common(array, tag, self._ranks) for array, tag in zip(arrays, calls[which]["output_axes"], strict=False)]

        pairs = [
            self._activated(row.left, row.right, dtype, [common(which, several[which]) for which in (0, 1)])
            for dtype, several in zip(self._dtypes, (narrow, wide), strict=True)
        ]
        row.forced.append(worst([self._difference(*four) for four in zip(*pairs[0], *pairs[1], strict=True)]))


def _first(arrays: list[np.ndarray], what: str) -> list[np.ndarray]:
    """Returns one array if the layer gives more (its attention weights), or is given the same one several times (query, key and value)."""
    same = what == "outputs" or all(np.array_equal(array, arrays[0]) for array in arrays[1:])
    return arrays[:1] if same else arrays


def _fit(one: Sequence[int], other: Sequence[int]) -> bool:
    return tuple(one) == tuple(other) or splits(one, other)


def _repeats(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether one has the other's axes, some of them of length 1."""
    return one.ndim == other.ndim and all(1 in pair or pair[0] == pair[1] for pair in zip(one.shape, other.shape, strict=True))


def _holds(path: str, others: Sequence[str]) -> bool:
    return any(other.startswith(f"{path}.") for other in others) if path else bool(others)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-6, atol=0))
    return one == other


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
