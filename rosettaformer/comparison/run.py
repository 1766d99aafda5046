"""Makes the report of two sides."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..common.processes import words
from . import axes
from .explaining import Explaining
from .matching import fusing, layer_matching, rename_table, value_matching, variable_matching
from .matching.rename_table import Rename
from .report import layouts, training_rows
from .report.explanations import Explanations
from .report.layer_rows import Rows
from .report.noise import difference
from .report.recorded_calls import Calls, without_head
from .report.versus import VERSION
from .running.declared_inputs import Input
from .running.given_inputs import Given, carry
from .running.side_process import Failed, Process, answers, both, timed
from .running.sides import Side

SHOWN = 8  # pairs of layers that a note names


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared and how.

    axes: the order of an input's axes on the left and on the right, by its name. dtype: the widest that is run, float32 or float64.
    """

    inputs: Sequence[Input] = ()
    file: Path | None = None
    axes: Sequence[Mapping[str, Sequence[str]]] = ({}, {})
    weights: str = "random"
    dtype: str = "float64"
    rename: Rename = dataclasses.field(default_factory=Rename)
    seed: int = 0
    gradients: bool = True
    step: bool = True
    time: Sequence[str] = ()
    rounds: int = 5
    limit: float = 300.0
    threads: int = 1
    progress: Callable[[str], None] = lambda what: None


def compare(left: Side, right: Side, options: Options) -> dict[str, Any]:
    """Returns the report. Raises ValueError on bad input, `Failed` if a side gives no answer, MissingBackend.

    If a side has no gradients or fails in training, the report holds outputs and layers, and `failed` says why.
    """
    sides = [Process(side, which, options.limit, options.threads) for side, which in ((left, "left"), (right, "right"))]
    try:
        return _Comparison(sides, options).report()
    finally:
        for side in sides:
            side.close()


class NotMatched(ValueError):
    """The weights of the two sides cannot be matched. table: a rename table to go on with."""

    def __init__(self, text: str, table: str) -> None:
        super().__init__(text)
        self.table = table


class _Comparison:
    def __init__(self, sides: Sequence[Process], options: Options) -> None:
        self._sides, self._options = sides, options
        self._notes: list[str] = []
        self._explaining = Explaining()
        self._ranks: list[str] = []
        self._parts: list[fusing.Parts] = [{}, {}]
        self._rename: Rename | None = None
        self._known: dict[str, tuple[str, str]] = {}  # pairs of layers that hold parts
        self._alike: dict[str, Any] = {}  # layers that flatten as the left does, though the right's axes are not followed

    def report(self) -> dict[str, Any]:
        options, progress = self._options, self._options.progress
        progress("building the models")
        canonical = all(side.side.kind in ("checkpoint", "component") for side in self._sides)
        left, right = (side.start() for side in self._sides)
        for side, of_other in zip(self._sides, (right, left), strict=True):
            side.ask("open", of_other, canonical)
        self._about = answers(self._sides)
        if others := [f"{name} at {left[name]!r} and {right[name]!r}" for name in left if name in right and left[name] != right[name]]:
            self._notes.append(f"the ports fix {', '.join(others)}")
        given = Given(self._about, options.inputs, options.file, options.axes, options.seed)
        self._ranks = given.ranks
        self._notes += given.notes
        progress("matching layers")
        described = given.prepared(self._sides, options.dtype == "float64", options.weights == "random")
        self._notes += [note for one in self._about for note in one["notes"]]
        self._explaining.left_out += [note for one in described for note in one["left_out"]]
        first = [answer[0] for answer in both(self._sides, "run", "float32")]
        self._networks = [layer_matching.Network.of(*pair) for pair in zip(described, first, strict=True)]
        self._layers, self._table = self._matched(first)
        self._carry()
        progress("running in float32 and float64")
        runs = {dtype: both(self._sides, "run", dtype) for dtype in ("float32", "float64")}
        if self._explaining("how inputs are flattened", self._found_otherwise, runs):
            self._layers, self._table = self._matched(first)
            self._carry()
            runs = {dtype: both(self._sides, "run", dtype) for dtype in ("float32", "float64")}
            self._tag(runs)
        self._require_finite(runs["float32"])
        layouts.settle(runs, self._layers, self._ranks, given.one_order)
        calls = Calls(self._sides, self._networks, self._layers, runs, self._ranks)
        headless = without_head(calls)
        rows = Rows(calls, self._table, self._explaining)
        report = self._start(given) | rows.report() | Explanations(rows, self._explaining).report()
        self._notes += calls.notes + [f"{headless}; gradients and steps are not compared"] * bool(headless)
        try:
            rows.require_alive()
            if not headless:
                self._train(report, given, calls)
        except Exception as error:  # the verdict on the outputs stays
            report["failed"] = str(error) if isinstance(error, Failed) else f"gradients and steps cannot be compared: {words(error)}"
        return report | {"notes": list(dict.fromkeys(self._notes)), "left_out": self._explaining.left_out}

    def _train(self, report: dict[str, Any], given: Given, calls: Calls) -> None:
        """Adds gradients, steps and times to the report, as far as they are asked for."""
        options, progress = self._options, self._options.progress
        if options.gradients or options.step or options.time:
            cotangents = calls.cotangents(options.seed)
            for side, arrays in zip(self._sides, cotangents, strict=True):
                side.call("cotangents", arrays)
        if options.gradients:
            progress("gradients")
            report["gradients"] = training_rows.gradients(calls, self._table, given.orders, self._explaining)
        if options.step:
            progress("one step of training")
            report["steps"] = training_rows.steps(calls, self._table, self._explaining)
        if options.time:
            progress("timing")
            report["timing"] = timed(self._sides, options.time, options.rounds, options.step)

    def _start(self, given: Given) -> dict[str, Any]:
        about = [
            {"side": side.side.text} | {name: one[name] for name in ("class", "framework", "versions", "convention")}
            for side, one in zip(self._sides, self._about, strict=True)
        ]
        inputs = {
            name: {"shape": list(array.shape), "dtype": str(array.dtype), "axes": list(named), "left": given.orders[name][0],
                   "right": given.orders[name][1]}
            for name, (array, named) in given.arrays.items()
        }  # fmt: skip
        layers = [{"left": one, "right": other, "how": how} for one, (other, how) in self._layers.items()]
        return {"version": VERSION, "left": about[0], "right": about[1], "inputs": inputs, "weights": self._options.weights,
                "layers_matched": layers, "variables": self._table}  # fmt: skip

    def _matched(self, calls: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, tuple[str, str]], list[variable_matching.Pair]]:
        left, right = self._networks
        owned = [[one for several in each.variables.values() for one in several] for each in (left, right)]
        if all(any(one["canonical"] for one in own) for own in owned):
            found = {path: (path, "canonical name") for path in left.order if path in right.order}
            found |= {"": ("", "whole")}
            table, more, _ = variable_matching.pairs(left, right, {}, self._options.rename, {})
            if more and self._options.weights != "own":
                raise ValueError("weights of the two sides do not fit:\n  " + "\n  ".join(more))
            return found, table
        rename = self._rename = self._rename or self._told(left, right)
        found, problems = layer_matching.layers(left, right, rename, self._known)
        if problems:
            self._known |= self._explaining("fused weights", self._fuse, found, calls) or {}
            found, problems = layer_matching.layers(left, right, rename, self._known)
        for side, parts in zip(self._sides, self._parts, strict=True):
            if parts:
                side.call("split", parts)
        table, more, missing = variable_matching.pairs(left, right, found, rename, self._flattened(calls, found))
        lacking = [text for (which, path), text in problems.items() if not which or (which, path) in missing]
        if (lacking or more) and self._options.weights != "own":
            said = (
                "weights of the two sides cannot be matched (--rename FILE.toml says what is what, and --write-rename FILE.toml begins it):"
            )
            raise NotMatched("\n  ".join([said, *lacking, *more, *self._explaining.left_out]), rename_table.unfinished(table, found))
        self._notes += [f"not matched: {problem}" for problem in lacking + more]
        by_order = [f"{one} = {other}" for one, (other, how) in found.items() if how == "order"]
        if self._options.weights == "own":
            values = [side.call("values") for side in self._sides]
            self._explaining("other numbers", variable_matching.compare_values, table, left, right, *values)
        if by_order:
            rest = f" and {len(by_order) - SHOWN} more" if len(by_order) > SHOWN else ""
            self._notes.append(f"matched by the order of execution alone: {', '.join(by_order[:SHOWN])}{rest}; --rename decides otherwise")
        return found, table

    def _fuse(self, found: Mapping[str, tuple[str, str]], calls: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, tuple[str, str]]:
        """Splits the layers that are several on the other side; returns the pairs of their parts."""
        taken = [{*found}, {other for other, _ in found.values()}]
        lost = [[path for path in network.held() if path not in known] for network, known in zip(self._networks, taken, strict=True)]
        pairs: dict[str, tuple[str, str]] = {}
        for which, side in enumerate(self._sides):
            own, other = self._networks[which], self._networks[1 - which]
            if several := fusing.fused(own, other, lost[which], lost[1 - which], calls[1 - which]):
                parts = fusing.parts(own, other, several)
                fusing.split(own, parts)
                halves = {(fusing.part(path, each), each) for path, names in several.items() for each in names}
                pairs |= {pair[which]: (pair[1 - which], "side by side") for pair in halves}
                self._parts[which] |= parts
                self._notes += [f"{side.which} {path} holds {', '.join(names)} side by side" for path, names in several.items()]
        left, right = self._networks
        for mine, theirs, rows in fusing.aligned(left, right, *lost):
            pairs[mine] = (theirs, "rows of the same positions")
            for which, (network, parts) in enumerate(zip(self._networks, rows, strict=True)):
                fusing.split(network, parts)
                self._parts[which] |= parts
        return pairs

    def _told(self, left: layer_matching.Network, right: layer_matching.Network) -> Rename:
        """Returns the table for the numbers in the left's names. What it says lies side by side is split, and what has no partner is
        required no more.
        """
        owners = [{one["name"]: one for several in network.variables.values() for one in several} for network in (left, right)]
        rename = self._options.rename.numbered([*left.layers, *owners[0]])
        if self._options.weights == "own":
            rename = self._by_value(rename, owners)
        for which, own in enumerate(owners):
            for name, one in own.items():
                one["required"] &= not rename.is_alone(which, name)
        parts, known = fusing.told(rename, *owners)
        self._known |= known
        fusing.split(left, parts)
        self._parts[0] |= parts
        return rename

    def _by_value(self, rename: Rename, owners: Sequence[Mapping[str, Any]]) -> Rename:
        """Returns the table with the variables that hold the same numbers; layers of which all do are partners."""
        every = [side.call("values") for side in self._sides]
        held = [{name: values[name] for name, one in own.items() if one["required"]} for own, values in zip(owners, every, strict=True)]
        found = value_matching.by_value(*held)
        partners: dict[str, set[str]] = {}
        for name, row in found.rows.items():
            partners.setdefault(owners[0][name]["layer"], set()).add(owners[1][row.name]["layer"])
        self._known |= {one: (min(others), "value") for one, others in partners.items() if one and len(others) == 1 and min(others)}
        count = len(found.rows) + len(found.parts)
        self._notes.append(f"matched by value: {count} of {len(held[0])} variables, which hold the same numbers on both sides")
        return Rename({**found.rows, **rename.rows}, {**found.parts, **rename.parts}, rename.alone)

    def _flattened(self, calls: Sequence[Sequence[Mapping[str, Any]]], found: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        """Returns the named axes of flattened inputs on both sides, by layer, if a side has followed them."""
        result = {}
        for path, (other, _) in found.items():
            flat = [_flat(several, name) for several, name in zip(calls, (path, other), strict=True)]
            flat = [next(filter(None, flat), None)] * 2 if path in self._alike else flat
            if any(flat):
                result[path] = flat
        return result

    def _found_otherwise(self, runs: Mapping[str, Sequence[Any]]) -> bool:
        """Whether a layer's flattened inputs equal the other's in the left's own order of axes, and not with channels last."""
        for row in self._table:
            other = self._layers.get(row["layer"], ("", ""))[0]
            if not row["how"].endswith("flattened"):
                continue
            calls = [
                [next(call for call in runs[dtype][which][0] if call["path"] == path) for dtype in ("float32", "float64")]
                for which, path in enumerate((row["layer"], other))
            ]
            tags = [several[0]["input_axes"][0] for several in calls]
            if all(tags):
                continue
            raw = [[call["inputs"][0] for call in several] for several in calls]
            turned = [[axes.to_common(array, tag, self._ranks) for array in several] for several, tag in zip(raw, tags, strict=True)]
            verdicts = [difference(*narrow, *wide).verdict for narrow, wide in (zip(*turned, strict=True), zip(*raw, strict=True))]
            if verdicts[0] == "differs" != verdicts[1]:
                tag = next(filter(None, tags))
                self._alike[row["layer"]] = tag
                self._notes.append(
                    f"{row['layer']} and {other} are given inputs that both sides flatten in the same order, and so are kernels"
                )
        return bool(self._alike)

    def _tag(self, runs: Mapping[str, Sequence[Any]]) -> None:
        """Says of the inputs that are flattened alike which axes they have, on the side that does not follow them."""
        for path, tag in self._alike.items():
            for which, name in enumerate((path, self._layers[path][0])):
                for dtype in runs:
                    for call in runs[dtype][which][0]:
                        if call["path"] == name:
                            call["input_axes"][0] = tag

    def _carry(self) -> None:
        self._notes += carry(self._sides, self._networks, self._table, self._options.weights, self._options.seed)

    def _require_finite(self, runs: Sequence[Any]) -> None:
        for side, (calls, _) in zip(self._sides, runs, strict=True):
            outputs = [array for array in calls[-1]["outputs"] if array.dtype.kind == "f"]
            if outputs and not any(np.isfinite(array).any() for array in outputs):
                raise ValueError(f"{side.which}, {side.side.text}, gives no finite number for these inputs and weights")


def _flat(calls: Sequence[Mapping[str, Any]], path: str) -> list[tuple[str, int]] | None:
    """Returns the named axes of the last axis of a layer's first input, if these are several with channels among them."""
    call = next((call for call in calls if call["path"] == path and call["inputs"]), None)
    tag = call and call["input_axes"] and call["input_axes"][0]
    if not tag or len(tag[-1]) < 2 or not any(name == axes.CHANNELS for name, _ in tag[-1]):
        return None
    return [(name, int(size)) for name, size in tag[-1]]
