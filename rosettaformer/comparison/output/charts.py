"""Line charts as data, drawn by matplotlib for the page and for files."""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..one_model.implementations import NAMES
from ..one_model.layer_errors import Layers, OutputError
from ..one_model.training import Curves

SIZE = 7, 4  # inches
LABELS = 14  # maximum number of labeled positions
COLOURS = {
    "numpy": "0.4", "torch": "#c2410c", "tf": "#946200", "jax": "#1c64c8", "reference": "0.8", "training": "C0", "validation": "C1",
    "transformers": "#7b3fa0",
}  # fmt: skip
STYLES = {"numpy": ("-", "o", 3.0), "torch": ("-", "s", 1.6), "tf": ((0, (5, 3)), "^", 1.6), "jax": ((0, (1, 3)), "D", 1.6),
          "transformers": ((0, (3, 2, 1, 2)), "x", 1.6),
          "reference": ("-", "", 7.0)}  # fmt: skip
NOISE = "noise"
GREY = "0.5"  # readable on light and dark backgrounds

Points = Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """Curves by name over the same positions.

    labels: labels of the positions. noise: height of the filled area. log: whether the value axis
    is logarithmic. NaN, infinity, and 0 on a logarithmic axis break a curve; None is skipped.
    """

    key: str
    title: str
    across: str
    up: str
    labels: Sequence[str]
    curves: Mapping[str, Points]
    noise: Points = ()
    log: bool = False

    def good(self, value: float | None) -> bool:
        """Returns whether the value has a point."""
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)


def draw(figure: Any, chart: Chart) -> None:
    """Draws the chart into a matplotlib figure; curves and noise have their names as ids."""
    axes, shown = figure.subplots(), list[str]()
    for name, curve in chart.curves.items():
        style, marker, width = STYLES.get(name, ("-", "", 1.6))
        points = [(place, value if chart.good(value) else math.nan) for place, value in enumerate(curve) if value is not None]
        if points:
            how = {"color": COLOURS.get(name), "linestyle": style, "marker": marker, "markersize": 4, "linewidth": width}
            axes.plot(*zip(*points, strict=True), label=title_of(name), gid=name, clip_on=False, **how)
            shown.append(name)
    values = [value for curve in (*chart.curves.values(), chart.noise) for value in curve if value is not None and chart.good(value)]
    if chart.noise:
        low = min(values, default=1.0)
        noise = [value if chart.good(value) else math.nan for value in chart.noise]
        axes.fill_between(range(len(noise)), low, noise, color="0.92", label=NOISE, zorder=0, gid=NOISE, clip_on=False)
    every = max(1, math.ceil(len(chart.labels) / LABELS))
    axes.set_xticks(range(0, len(chart.labels), every), list(chart.labels)[::every])
    axes.set(xlabel=chart.across, ylabel=chart.up, title=chart.title, yscale="log" if chart.log else "linear")
    legend = axes.legend(fontsize="x-small", frameon=False)
    for name, handle in zip([*shown, NOISE], legend.legend_handles, strict=False):
        handle.set_gid(name)


def svg(chart: Chart) -> str:
    """Returns the chart as an SVG element, with names of curves as classes."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY)
    with matplotlib.rc_context(settings | {"svg.fonttype": "none", "svg.hashsalt": chart.key}), io.StringIO() as file:
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure, chart)
        figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        text = file.getvalue()
    text = re.sub(r"<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)  # it would apply to the whole page
    text = re.sub(r'(<path id="m[^>]*?") style="[^"]*"', r"\1", text)  # a marker inherits the style of its curve
    text = re.sub(rf'id="({"|".join([*chart.curves, NOISE])})"', r'class="\1"', text)
    return re.sub(r' id="(?!m[0-9a-f]{10}")[^"]*"', "", text)  # ids are not unique across charts


def layer_charts(found: Layers) -> Iterator[Chart]:
    """Yields, for each dtype, the error after every layer relative to its largest value."""
    for dtype in found.dtypes:
        places = [place for place in found.outputs if place.dtype == dtype]
        stacks = [[place for place in places if place.name.startswith(stack)] for stack in ("encoder", "decoder")]
        rows: list[OutputError | None] = [*stacks[0], *([None] if all(stacks) else []), *stacks[1]]  # None: a gap between the two stacks
        labels = ["" if row is None else _short(row.name, all(stacks)) for row in rows]
        names = dict.fromkeys(name for place in places for name in place.found)
        curves = {name: [_relative(row, name) for row in rows] for name in names}
        noise = [math.nan if row is None else row.noise / (row.largest or 1.0) for row in rows]
        yield Chart(f"error-{dtype}", dtype, "layer", "error / largest value", labels, curves, noise, log=True)


def _relative(row: OutputError | None, name: str) -> float:
    """Returns the error of an implementation, relative to the largest value."""
    return row.found[name].error / (row.largest or 1.0) if row and name in row.found else math.nan


def _short(name: str, several: bool) -> str:
    stack, *rest = name.split()
    return (stack[0] if several else "") + ("emb" if rest == ["embedding"] else rest[-1])


def training_charts(curves: Curves) -> Iterator[Chart]:
    """Yields charts of loss and gradient norm, and of their errors in units of the noise."""
    labels = [str(step + 1) for step in range(len(curves.losses))]
    for kind, (key, title, expected) in enumerate((("loss", "loss", curves.losses), ("gradient-norm", "gradient norm", curves.norms))):
        found = {name: [pair[kind] for pair in pairs] for name, pairs in curves.found.items()}
        yield Chart(key, title, "step", title, labels, {"reference": [float(one.reference) for one in expected], **found})
        away = {name: [pair[kind] for pair in curves.units(name)] for name in curves.found}
        noise = [1.0] * len(labels)
        yield Chart(f"{key}-difference", f"{title} error", "step", "× noise", labels, away, noise, log=True)


def recorded_chart(log: Sequence[Mapping[str, Any]], parts: int = 60) -> Chart | None:
    """Returns the training and validation losses of a run; None without a log."""
    steps = [entry for entry in log if entry.get("event") == "step" and "loss" in entry]
    if not steps:
        return None
    groups = np.array_split(np.arange(len(steps)), min(parts, len(steps)))
    ends = [int(steps[group[-1]]["step"]) for group in groups]
    losses = [float(np.mean([steps[index]["loss"] for index in group])) for group in groups]
    validations: list[float | None] = [None] * len(ends)
    for entry in log:
        if entry.get("event") == "validation" and "loss" in entry:
            validations[min(range(len(ends)), key=lambda index: abs(ends[index] - entry["step"]))] = float(entry["loss"])
    curves: dict[str, Points] = {"training": losses, "validation": validations}
    return Chart("recorded", "recorded by the run", "step", "loss per token", [str(end) for end in ends], curves)


def title_of(name: str) -> str:
    """Returns the title of a curve."""
    return NAMES.get(name, {"reference": "float64 reference", "training": "training (mean)", "validation": "validation"}.get(name, name))
