"""A comparison, from two sides to a report."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import container
from . import axes, declared, matching, trained, variables, weights
from .noise import difference
from .process import Process, both
from .rename import Rename
from .rows import Rows
from .sides import Side
from .timing import timed

__all__ = ["VERSION", "Options", "compare"]

VERSION = 1  # of the report's JSON


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared and how. axes: the order of an input's axes on the left and on the right, by its name."""

    inputs: Sequence[declared.Input] = ()
    file: Path | None = None
    axes: Sequence[Mapping[str, Sequence[str]]] = ({}, {})
    weights: str = "left"
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
    """The report. Raises ValueError on bad input, `Failed` where a side gives no answer, MissingBackend."""
    sides = [Process(side, which, options.limit, options.threads) for side, which in ((left, "left"), (right, "right"))]
    try:
        return _Comparison(sides, options).report()
    finally:
        for side in sides:
            side.close()


class _Comparison:
    def __init__(self, sides: Sequence[Process], options: Options) -> None:
        self._sides, self._options = sides, options
        self._notes: list[str] = []
        self._ranks: list[str] = []
        self._alike: dict[str, Any] = {}  # layers that flatten as the left does, though the right's axes are not followed

    def report(self) -> dict[str, Any]:
        options, progress = self._options, self._options.progress
        progress("building the models")
        self._about = [side.start() for side in self._sides]
        inputs = self._inputs()
        progress("matching layers")
        described = self._prepared(inputs)
        first = [answer[0] for answer in both(self._sides, "run", "float32")]
        self._networks = [matching.Network.of(*pair) for pair in zip(described, first, strict=True)]
        self._layers, self._table = self._matched(first)
        self._carry()
        progress("running in float32 and float64")
        runs = {dtype: both(self._sides, "run", dtype) for dtype in ("float32", "float64")}
        if self._found_otherwise(runs):
            self._layers, self._table = self._matched(first)
            self._carry()
            runs = {dtype: both(self._sides, "run", dtype) for dtype in ("float32", "float64")}
            self._tag(runs)
        self._require_finite(runs["float32"])
        rows = Rows(self._sides, self._networks, self._layers, self._table, runs, self._ranks)
        report = self._start(inputs) | rows.report()
        self._notes += rows.notes
        if options.gradients or options.step or options.time:
            cotangents = rows.cotangents(options.seed)
            for side, arrays in zip(self._sides, cotangents, strict=True):
                side.call("cotangents", arrays)
        if options.gradients:
            progress("gradients")
            names = {name: self._orders[name] for name in inputs}
            report["gradients"] = trained.gradients(self._sides, self._table, names)
        if options.step:
            progress("one step of training")
            report["steps"] = trained.steps(self._sides, self._table, rows)
        if options.time:
            progress("timing")
            report["timing"] = timed(self._sides, options.time, options.rounds, options.step)
        report["notes"] = self._notes
        return report

    def _start(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        about = [
            {"side": side.side.text} | {name: one[name] for name in ("class", "framework", "versions", "convention")}
            for side, one in zip(self._sides, self._about, strict=True)
        ]
        given = {
            name: {"shape": list(array.shape), "dtype": str(array.dtype), "axes": list(named), "left": self._orders[name][0],
                   "right": self._orders[name][1]}
            for name, (array, named) in inputs.items()
        }  # fmt: skip
        layers = [{"left": one, "right": other, "how": how} for one, (other, how) in self._layers.items()]
        return {"version": VERSION, "left": about[0], "right": about[1], "inputs": given, "weights": self._options.weights,
                "layers_matched": layers, "variables": self._table}  # fmt: skip

    def _inputs(self) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
        """The inputs by name, from the file, as declared, or those that a checkpoint's model suggests."""
        options = self._options
        given = declared.read(options.file) if options.file else {}
        chosen = list(options.inputs)
        if not given and not chosen:
            suggested = next((one["inputs"] for one in self._about if one["inputs"]), None)
            if not suggested:
                named = ", ".join(name for name, _ in self._about[0]["arguments"]) or "x"
                raise ValueError(
                    f"inputs are required: --inputs FILE.npz, or --input for each, such as --input '{named.split(',')[0]}: b=2 h=16 w=16 "
                    f"c=3 float32'; the left takes {named}"
                )
            chosen = [declared.declaration(text) for text in suggested]
        return declared.make(chosen, given, options.seed)

    def _prepared(self, inputs: Mapping[str, tuple[np.ndarray, tuple[str, ...]]]) -> list[Any]:
        """Gives both sides the inputs in their own axes; what they consist of."""
        conventions = [one["convention"] for one in self._about]
        self._orders: dict[str, list[list[str]]] = {}
        for name, (array, named) in inputs.items():
            self._orders[name] = [self._order(which, name, named, conventions) for which in (0, 1)]
            if not named and array.ndim > 2 and array.dtype.kind == "f" and {*conventions} == {"first", "last"}:
                raise ValueError(
                    f"the axes of {name} must be declared, such as --input '{name}: b h w c', with c for the channels: the left has "
                    f"channels {conventions[0]}, the right {conventions[1]}"
                )
            self._ranks += [axis for axis in axes.common(named) if axis not in self._ranks]
        described = []
        for which, side in enumerate(self._sides):
            own = {
                name: np.ascontiguousarray(array.transpose(axes.permutation(named, self._orders[name][which])) if named else array)
                for name, (array, named) in inputs.items()
            }
            described.append(side.call("prepare", own, {name: self._orders[name][which] for name in inputs}))
        for one, found in zip(self._about, described, strict=True):
            one["convention"] = found["convention"]
            self._notes += one["notes"]
        return described

    def _order(self, which: int, name: str, named: Sequence[str], conventions: Sequence[str]) -> list[str]:
        given = self._options.axes[which].get(name)
        if given:
            try:
                axes.permutation(named, given)
            except ValueError as error:
                raise ValueError(f"--{('left', 'right')[which]}-axes {name}: {error}") from None
            return list(given)
        known = conventions[which] or next(filter(None, conventions), "")
        return axes.ordered(named, known) if {*conventions} - {""} else list(named)

    def _matched(self, calls: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, tuple[str, str]], list[variables.Pair]]:
        left, right = self._networks
        if self._is_canonical():
            return self._canonical(calls)
        found, problems = matching.layers(left, right, self._options.rename)
        flattened = self._flattened(calls, found)
        table, more = ([], []) if problems else variables.pairs(left, right, found, self._options.rename, flattened)
        if (problems or more) and self._options.weights != "own":
            said = "weights of the two sides cannot be matched (--rename FILE.toml says what is what):"
            raise ValueError("\n  ".join([said, *problems, *more]))
        self._notes += [f"not matched: {problem}" for problem in problems + more]
        by_order = [f"{one} = {other}" for one, (other, how) in found.items() if how == "order"]
        if by_order:
            self._notes.append(f"matched by the order of execution alone: {', '.join(by_order)}; --rename decides otherwise")
        return found, table

    def _is_canonical(self) -> bool:
        return all(any(one["canonical"] for several in network.variables.values() for one in several) for network in self._networks)

    def _canonical(self, calls: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, tuple[str, str]], list[variables.Pair]]:
        """Of two models of ours, or ports to them, whose names are known."""
        left, right = self._networks
        found = {path: (path, "canonical name") for path in left.order if path in right.order} | {"": ("", "whole")}
        table, problems = variables.pairs(left, right, {}, self._options.rename, {})
        if problems and self._options.weights != "own":
            raise ValueError("weights of the two sides do not fit:\n  " + "\n  ".join(problems))
        return found, table

    def _flattened(self, calls: Sequence[Sequence[Mapping[str, Any]]], found: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        """For layers on flattened inputs, the named axes of these on both sides, where a side has followed them."""
        result = {}
        for path, (other, _) in found.items():
            flat = [_flat(several, name) for several, name in zip(calls, (path, other), strict=True)]
            flat = [next(filter(None, flat), None)] * 2 if path in self._alike else flat
            if any(flat):
                result[path] = flat
        return result

    def _found_otherwise(self, runs: Mapping[str, Sequence[Any]]) -> bool:
        """Whether a layer's flattened inputs are the other's in its own order of axes, and not in that of channels last."""
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
            if difference(*turned[0], *turned[1]).verdict == "differs" != difference(*raw[0], *raw[1]).verdict:
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
        """Gives the weights of one side, or of a file, to the other."""
        choice = self._options.weights
        if choice == "own":
            return
        source = 1 if choice == "right" else 0
        values = self._sides[source].call("values") if choice in ("left", "right") else self._of_file(Path(choice))
        wrong = [name for name, array in values.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
        if wrong:
            raise ValueError(f"weights must be finite; NaN or infinite are {', '.join(wrong[:5])} of {choice}")
        ends = ("left", "right") if source == 0 else ("right", "left")
        carried = {}
        for row in self._table:
            if row["left"] and row["right"]:
                array = values[row[ends[0]]]
                carried[row[ends[1]]] = weights.carried(array, row[f"{ends[0]}_axes"], row[f"{ends[1]}_axes"], row["sizes"])
        self._sides[1 - source].call("load", carried)
        if choice not in ("left", "right"):
            self._sides[0].call("load", {row["left"]: values[row["left"]] for row in self._table if row["left"] in values})

    def _of_file(self, path: Path) -> dict[str, np.ndarray]:
        """The weights of a file, which has the left's names."""
        source = container.read(path)
        own = [one for several in self._networks[0].variables.values() for one in several if one["required"]]
        wanted = {one["name"]: tuple(one["shape"]) for one in own}
        problems = [f"{path} has no {name}" for name in wanted if name not in source.tensors]
        problems += [
            f"{name} must have shape {shape}; {path} has {source.tensors[name].shape}"
            for name, shape in wanted.items()
            if name in source.tensors and tuple(source.tensors[name].shape) != shape
        ]
        if problems:
            raise ValueError("\n  ".join(problems))
        return {name: np.asarray(source.tensors[name], np.float32) for name in wanted}

    def _require_finite(self, runs: Sequence[Any]) -> None:
        for side, (calls, _) in zip(self._sides, runs, strict=True):
            outputs = [array for array in calls[-1]["outputs"] if array.dtype.kind == "f"]
            if outputs and not any(np.isfinite(array).any() for array in outputs):
                raise ValueError(f"{side.which}, {side.side.text}, gives no finite number for these inputs and weights")


def _flat(calls: Sequence[Mapping[str, Any]], path: str) -> list[tuple[str, int]] | None:
    """The named axes of the last axis of a layer's first input, where these are several with channels among them."""
    call = next((call for call in calls if call["path"] == path and call["inputs"]), None)
    tag = call and call["input_axes"] and call["input_axes"][0]
    if not tag or len(tag[-1]) < 2 or not any(name == axes.CHANNELS for name, _ in tag[-1]):
        return None
    return [(name, int(size)) for name, size in tag[-1]]
