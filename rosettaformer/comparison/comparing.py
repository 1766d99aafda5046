"""Compares two models given by name and returns the report as data."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..common.backends import needs_of
from ..common.extras import require
from ..common.outputs import versioned
from ..common.processes import words
from ..files.artefacts.kinds import KINDS
from . import axes
from . import words as notes
from .engine import declared_inputs, opening, sides
from .engine.given_inputs import Given, carry
from .engine.process import Failed, Process, answers, every
from .engine.speed import Speed, Timing
from .explaining import Explaining
from .findings import training_rows
from .findings.explanations import Explanations
from .findings.layer_rows import Rows
from .findings.noise import difference
from .findings.recorded_calls import Calls, without_head
from .matching import fusing, layer_matching, layouts, rename_table, value_matching, variable_matching
from .matching.rename_table import Rename
from .output import terminal
from .timing.rows import MODES

TIMES: dict[str, tuple[str, ...]] = {"none": (), **{mode: (mode,) for mode in MODES}, "all": MODES}
SIDES = ("left", "right")


ROUNDS, THREADS = 5, 1  # timing rounds, threads per side


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a comparison.

    inputs: declarations, such as "tokens: b=2 t=7 int64 <100". file: .npz file with inputs. axes:
    axis orders of the inputs on the left and on the right, such as "image: b c h w". weights:
    random, left, right, own or a file; empty selects a default for the sides. rename: table of
    names. time: a key of TIMES. dtype: widest dtype to run, float32 or float64. limit: seconds for
    one request.
    """

    inputs: Sequence[str] = ()
    file: Path | None = None
    axes: Sequence[Sequence[str]] = ((), ())
    weights: str = ""
    rename: str = ""
    time: str = "none"
    gradients: bool = True
    step: bool = True
    dtype: str = "float64"
    seed: int = 0
    limit: float = 300.0


def compare(
    left: str,
    right: str,
    component: str = "",
    settings: Mapping[str, Any] | None = None,
    weights: str = "",
    rename: str = "",
    inputs: Sequence[str] = (),
    gradients: bool = True,
    step: bool = True,
    dtype: str = "float64",
    seed: int = 0,
    limit: float = 300.0,
) -> dict[str, Any]:
    """Compares two models on the same weights and inputs; returns the report of `compare --json`.

    `verdict` is a word or two and `sentences` explain it; `outputs`, `layers` and `variables` have
    the numbers. left, right: "FILE.py:NAME", "MODULE:NAME", "CHECKPOINT@BACKEND",
    "transformers:DIR", "keras-hub:DIR", an ONNX file or, with component, a port. settings:
    constructor arguments of both models. weights: random, left, right, own or a file. rename: table
    of names. inputs: declarations, such as "tokens: b=2 t=7 int64 <100". limit: seconds for one
    request. Raises ValueError on invalid input, MissingBackend.
    """
    named = sides_of(left, right, settings or {}, component)
    if named[0].kind == "report":
        raise ValueError(f"{left} and {right} are reports; only the command `rosettaformer compare` compares them")
    options = Options(inputs, weights=weights, rename=rename, gradients=gradients, step=step, dtype=dtype, seed=seed, limit=limit)
    return between(named, options)


def sides_of(left: str, right: str, settings: Mapping[str, Any], component: str) -> list[sides.Side]:
    """Returns the sides by name. Raises ValueError on an unknown name, and on a report and a model."""
    named = sides.paired([sides.parse(text, settings, component) for text in (left, right)])
    reports = [side for side in named if side.kind == "report"]
    if len(reports) == 1:
        raise ValueError(f"a report can only be compared with another report; only {reports[0].text} is one")
    return named


def between(named: Sequence[sides.Side], options: Options, progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Returns the report of two sides.

    If gradients or training fail, the report still has outputs and layers, and `failed` has the
    reason. Raises ValueError on invalid input, `Failed` if the process of a side fails, and
    MissingBackend if a package is missing.
    """
    _require(named)
    found = _Comparison(named, options, progress).report()
    return versioned("compare", {"verdict": terminal.verdict(found), "sentences": terminal.sentences(found)} | found)


def _require(named: Sequence[sides.Side]) -> None:
    """Raises MissingBackend if a package is missing. Imports of the user's code are not known yet."""
    for side in named:
        if side.kind == "artefact":
            require(side.text, {KINDS["onnx"].extra: KINDS["onnx"].needs})
        elif side.kind == "loaded":
            opening.require(side.name)
        elif side.kind in ("checkpoint", "component"):
            require(side.text, needs_of(side.name or side.path))


class NotMatched(ValueError):
    """The weights of the two sides cannot be matched. table: a draft of a rename table."""

    def __init__(self, text: str, table: str) -> None:
        super().__init__(text)
        self.table = table


class _Comparison:
    def __init__(self, named: Sequence[sides.Side], options: Options, progress: Callable[[str], None]) -> None:
        if any(side.kind == "artefact" for side in named):
            options = dataclasses.replace(options, gradients=False, step=False)
        self._named, self._options, self._progress = named, options, progress
        self._inputs = [declared_inputs.declaration(text) for text in options.inputs]
        self._axes = [dict(map(declared_inputs.axes_of, texts)) for texts in options.axes]
        for which, order in zip(SIDES, self._axes, strict=True):
            if unknown := order.keys() - {one.name for one in self._inputs if one.axes}:
                raise ValueError(f"--axes {which} names {', '.join(sorted(unknown))}, which no --input declares with axes")
        self._weights, self._asked = self._chosen_weights(), rename_table.read(options.rename)
        self._notes: list[str] = []
        self._explaining = Explaining()
        self._ranks: list[str] = []
        self._parts: list[fusing.Parts] = [{}, {}]
        self._rename: Rename | None = None
        self._known: dict[str, tuple[str, str]] = {}  # pairs of layers with fused weights
        self._alike: dict[str, Any] = {}  # layers that flatten like the left, although the right's axes are unknown

    def _chosen_weights(self) -> str:
        kinds, weights = {side.kind for side in self._named}, self._options.weights
        own = "artefact" in kinds or ("loaded" in kinds and "built" not in kinds)
        chosen = weights or ("random" if kinds == {"built"} else "own" if own else "left")
        if "artefact" in kinds and chosen != "own":
            raise ValueError(f"--weights must be own for an ONNX file; got {chosen!r}")
        if chosen not in ("random", "left", "right", "own") and not Path(chosen).exists():
            raise ValueError(f"--weights must be random, left, right, own or a file; got {chosen!r}")
        return chosen

    def report(self) -> dict[str, Any]:
        self._sides = [Process(side, which, self._options.limit, THREADS) for side, which in zip(self._named, SIDES, strict=True)]
        try:
            return self._report()
        finally:
            for side in self._sides:
                side.close()

    def _report(self) -> dict[str, Any]:
        options, progress = self._options, self._progress
        progress("building the models")
        canonical = all(side.side.kind in ("checkpoint", "component") for side in self._sides)
        left, right = (side.start() for side in self._sides)
        for side, of_other in zip(self._sides, (right, left), strict=True):
            side.ask("open", of_other, canonical)
        self._about = answers(self._sides)
        self._notes += filter(None, [notes.fixed(left, right)])
        given = Given(self._about, self._inputs, options.file, self._axes, options.seed)
        self._ranks = given.ranks
        self._notes += given.notes
        progress("matching layers")
        described = given.prepared(self._sides, options.dtype == "float64", self._weights == "random")
        self._notes += [note for one in self._about for note in one["notes"]]
        self._explaining.left_out += [note for one in described for note in one["left_out"]]
        first = [answer[0] for answer in every(self._sides, "run", "float32")]
        self._networks = [layer_matching.Network.of(*pair) for pair in zip(described, first, strict=True)]
        self._layers, self._table = self._matched(first)
        self._carry()
        progress("running in float32 and float64")
        runs = {dtype: every(self._sides, "run", dtype) for dtype in ("float32", "float64")}
        if self._explaining("flattened inputs", self._found_otherwise, runs):
            self._layers, self._table = self._matched(first)
            self._carry()
            runs = {dtype: every(self._sides, "run", dtype) for dtype in ("float32", "float64")}
            self._tag(runs)
        self._require_finite(runs["float32"])
        layouts.settle(runs, self._layers, self._ranks, given.one_order)
        calls = Calls(self._sides, self._networks, self._layers, runs, self._ranks)
        headless = without_head(calls)
        rows = Rows(calls, self._table, self._explaining)
        report = self._start(given) | rows.report() | Explanations(rows, self._explaining).report()
        self._notes += calls.notes + [headless] * bool(headless)
        try:
            rows.require_alive()
            if not headless and not rows.undecided:
                self._train(report, given, calls)
        except Exception as error:  # keep the verdict on the outputs
            report["failed"] = str(error) if isinstance(error, Failed) else f"gradients and steps could not be compared: {words(error)}"
        return report | {"notes": list(dict.fromkeys(self._notes)), "left_out": self._explaining.left_out}

    def _train(self, report: dict[str, Any], given: Given, calls: Calls) -> None:
        """Adds the requested gradients, steps and times to the report."""
        options, progress = self._options, self._progress
        if options.gradients or options.step or TIMES[options.time]:
            cotangents = calls.cotangents(options.seed)
            for side, arrays in zip(self._sides, cotangents, strict=True):
                side.call("cotangents", arrays)
        if options.gradients:
            progress("gradients")
            report["gradients"] = training_rows.gradients(calls, self._table, given.orders, self._explaining)
        if options.step:
            progress("one step of training")
            report["steps"] = training_rows.steps(calls, self._table, self._explaining)
        if TIMES[options.time]:
            progress("timing")
            report["timing"] = self._timed()

    def _timed(self) -> list[dict[str, Any]]:
        """Returns rows for forward and step in each mode: median, first call, peak memory."""
        options, modes = self._options, TIMES[self._options.time]
        speed = Speed(ROUNDS, THREADS, progress=self._progress)
        kinds = ["forward", *["step"] * options.step]
        for what in kinds:
            speed.table(what, {side.which: side.tell for side in self._sides}, "rows", what, modes)
        if ended := next((side for side in self._sides if side.ended), None):
            raise ended.failed(f"cannot be timed: {ended.tell('drop')[1]}")  # the answer says how it ended
        cells = {(timing.what, timing.mode, timing.name): _cell(timing) for timing in speed.timings}
        return [
            {"what": what, "mode": mode, "sides": [cells[what, mode, side.which] for side in self._sides]}
            for what in kinds
            for mode in modes
        ]

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
        return {"left": about[0], "right": about[1], "inputs": inputs, "weights": self._weights,
                "layers_matched": layers, "variables": self._table}  # fmt: skip

    def _matched(self, calls: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, tuple[str, str]], list[variable_matching.Pair]]:
        left, right = self._networks
        owned = [[one for several in each.variables.values() for one in several] for each in (left, right)]
        if all(any(one["canonical"] for one in own) for own in owned):
            found = {path: (path, "canonical name") for path in left.order if path in right.order}
            found |= {"": ("", "whole")}
            table, more, _ = variable_matching.pairs(left, right, {}, self._asked, {})
            if more and self._weights != "own":
                raise ValueError("the weights of the two sides do not match:\n  " + "\n  ".join(more))
            return found, table
        for which, pair in enumerate(((left, right), (right, left))):
            self._parts[which] |= (parts := fusing.gated(*pair))
            fusing.split(pair[0], parts)
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
        if (lacking or more) and self._weights != "own":
            remedy = "map the names yourself: --write-rename FILE.toml writes a draft of the table that --rename FILE.toml reads"
            raise NotMatched(
                "\n  ".join(["the weights cannot be matched:", *lacking, *more, *self._explaining.left_out, remedy]),
                rename_table.unfinished(table, found),
            )
        self._notes += [f"not matched: {problem}" for problem in lacking + more]
        by_order = [f"{one} = {other}" for one, (other, how) in found.items() if how == "order"]
        if self._weights == "own":
            values = [side.call("values") for side in self._sides]
            self._explaining("other numbers", variable_matching.compare_values, table, left, right, *values)
        if by_order:
            self._notes.append(notes.by_order(by_order))
        return found, table

    def _fuse(self, found: Mapping[str, tuple[str, str]], calls: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, tuple[str, str]]:
        """Splits layers that correspond to several of the other side; returns pairs of parts."""
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
                self._notes += [notes.fused(side.which, path, names) for path, names in several.items()]
        left, right = self._networks
        for mine, theirs, rows in fusing.aligned(left, right, *lost):
            pairs[mine] = (theirs, "rows of the same positions")
            for which, (network, parts) in enumerate(zip(self._networks, rows, strict=True)):
                fusing.split(network, parts)
                self._parts[which] |= parts
        return pairs

    def _told(self, left: layer_matching.Network, right: layer_matching.Network) -> Rename:
        """Returns the rename table, expanded for the left's names; splits the variables that it
        splits.

        Variables that it leaves without a partner are no longer required.
        """
        owners = [{one["name"]: one for several in network.variables.values() for one in several} for network in (left, right)]
        rename = self._asked.numbered([*left.layers, *owners[0]])
        if self._weights == "own":
            rename = self._explaining("equal values", self._by_value, rename, owners) or rename
        for which, own in enumerate(owners):
            for name, one in own.items():
                one["required"] &= not rename.is_alone(which, name)
        parts, known = fusing.told(rename, *owners)
        self._known |= known
        fusing.split(left, parts)
        self._parts[0] |= parts
        return rename

    def _by_value(self, rename: Rename, owners: Sequence[Mapping[str, Any]]) -> Rename:
        """Returns the table, extended by variables with equal values, and pairs their layers."""
        every = [side.call("values") for side in self._sides]
        held = [{name: values[name] for name, one in own.items() if one["required"]} for own, values in zip(owners, every, strict=True)]
        found = value_matching.by_value(*held)
        partners: dict[str, set[str]] = {}
        crossed = {name for name, row in found.rows.items() if name != row.name and name in owners[1] and row.name in owners[0]}
        for name, row in [(name, row) for name, row in found.rows.items() if name not in crossed]:
            partners.setdefault(owners[0][name]["layer"], set()).add(owners[1][row.name]["layer"])
        self._known |= {one: (min(others), "value") for one, others in partners.items() if one and len(others) == 1 and min(others)}
        count = len(found.rows) + len(found.parts)
        self._notes.append(notes.by_value(count, len(held[0])))
        return Rename({**found.rows, **rename.rows}, {**found.parts, **rename.parts}, rename.alone)

    def _flattened(self, calls: Sequence[Sequence[Mapping[str, Any]]], found: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        """Returns the named axes of flattened inputs by layer, if a side has traced them."""
        result = {}
        for path, (other, _) in found.items():
            flat = [_flat(several, name) for several, name in zip(calls, (path, other), strict=True)]
            flat = [next(filter(None, flat), None)] * 2 if path in self._alike else flat
            if any(flat):
                result[path] = flat
        return result

    def _found_otherwise(self, runs: Mapping[str, Sequence[Any]]) -> bool:
        """Returns whether flattened inputs agree only without moving channels last."""
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
                self._notes.append(notes.flattened(row["layer"], other))
        return bool(self._alike)

    def _tag(self, runs: Mapping[str, Sequence[Any]]) -> None:
        """Sets the axes of equally flattened inputs on the side that has not traced them."""
        for path, tag in self._alike.items():
            for which, name in enumerate((path, self._layers[path][0])):
                for dtype in runs:
                    for call in runs[dtype][which][0]:
                        if call["path"] == name:
                            call["input_axes"][0] = tag

    def _carry(self) -> None:
        self._notes += carry(self._sides, self._networks, self._table, self._weights, self._options.seed)

    def _require_finite(self, runs: Sequence[Any]) -> None:
        for side, (calls, _) in zip(self._sides, runs, strict=True):
            outputs = [array for array in calls[-1]["outputs"] if array.dtype.kind == "f"]
            if outputs and not any(np.isfinite(array).any() for array in outputs):
                raise ValueError(f"{side.side.text} (the {side.which}) outputs no finite number for these inputs and weights")


def _cell(timing: Timing) -> dict[str, Any]:
    """Returns the timing of one side for the report."""
    if timing.message or timing.first_s is None:
        return {"failed": timing.message}
    found = {"first_ms": 1e3 * timing.first_s, "median_ms": timing.median_ms, "min_ms": min(timing.samples_ms)}
    return found if timing.mode == "compiled" else found | {"peak_mib": timing.memory_mib}


def _flat(calls: Sequence[Mapping[str, Any]], path: str) -> list[tuple[str, int]] | None:
    """Returns the named axes combined in a layer's first input, if channels are among them."""
    call = next((call for call in calls if call["path"] == path and call["inputs"]), None)
    tag = call and call["input_axes"] and call["input_axes"][0]
    if not tag or len(tag[-1]) < 2 or not any(name == axes.CHANNELS for name, _ in tag[-1]):
        return None
    return [(name, int(size)) for name, size in tag[-1]]
