"""Every picture of a report as files, drawn by matplotlib from the report's data."""

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import pictures
from . import charts
from .chart import Chart
from .layers import Attention
from .report import Report
from .workers import NAMES

__all__ = ["FORMATS", "MARK", "is_ours", "write"]

FORMATS = (".png", ".svg")
MARK = "report.json"  # the numbers, by which a folder is known to be one of figures
COLOURS = {
    "numpy": "0.4", "torch": "#c2410c", "tf": "#946200", "jax": "#1c64c8", "reference": "0.8", "training": "C0", "validation": "C1",
}  # fmt: skip
STYLES = {"numpy": ("-", "o", 3.0), "torch": ("-", "s", 1.6), "tf": ((0, (5, 3)), "^", 1.6), "jax": ((0, (1, 3)), "D", 1.6),
          "reference": ("-", "", 7.0)}  # fmt: skip

Figures = Iterator[tuple[str, Callable[[Any], None], tuple[float, float]]]


def is_ours(folder: Path) -> bool:
    """Whether the folder may be replaced: it does not exist, is empty, or holds what this module writes and nothing else."""
    if not folder.exists():
        return True
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else [""]
    return not names or (MARK in names and all(name == MARK or Path(name).suffix in FORMATS for name in names))


def write(folder: Path, report: Report, progress: Callable[[str], None] = lambda text: None) -> int:
    """Draws every figure into the folder, which exists, as PNG and SVG: how many figures there are."""
    from matplotlib.figure import Figure

    count = 0
    for name, draw, size in _figures(report):
        progress(f"figures: {name}")
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        for suffix in FORMATS:
            pictures.save(figure, folder / f"{name}{suffix}")
        count += 1
    return count


def _figures(report: Report) -> Figures:
    if report.summary:
        yield "matrix", lambda figure: _matrix(figure, report), (3 + 0.62 * 4 * len(report.present), 1.6 + 0.4 * len(report.summary.rows) / 4)
    if report.layers and report.layers.outputs:
        for chart in charts.layer_charts(report.layers):
            yield chart.key, lambda figure, chart=chart: _chart(figure, chart), (7, 4)  # type: ignore[misc]
    if report.layers and "attention" in report.options.sections:
        for one, layer in itertools.chain.from_iterable(((one, layer) for layer in range(len(one.reference_lhts))) for one in report.layers.attention):
            size = 2.2 * len(one.found_lhts) + 1.5, 1.2 + 2.1 * one.reference_lhts.shape[1] * 2
            yield f"{one.name.replace(' ', '-')}-layer-{layer:02}", lambda figure, one=one, layer=layer: _attention(figure, one, layer), size  # type: ignore[misc]
    if report.curves and report.curves.found:
        for chart in charts.training_charts(report.curves):
            yield chart.key, lambda figure, chart=chart: _chart(figure, chart), (7, 4)  # type: ignore[misc]
    if (recorded := charts.recorded_chart(report.subject.log)) is not None:
        yield recorded.key, lambda figure: _chart(figure, recorded), (7, 4)
    if report.speed:
        yield "speed", lambda figure: _speed(figure, report), (8, 1.5 + 0.4 * len(report.speed.timings))
        yield "memory", lambda figure: _memory(figure, report), (8, 2.6)


def _chart(figure: Any, chart: Chart) -> None:
    axes, places = figure.subplots(), np.arange(len(chart.labels))
    for name, curve in chart.curves.items():
        style, marker, width = STYLES.get(name, ("-", "", 1.6))
        values = [value if chart.good(value) else math.nan for value in curve]
        label = charts.title_of(name)
        axes.plot(places, values, color=COLOURS.get(name), linestyle=style, marker=marker, markersize=4, linewidth=width, label=label)
    low, high = chart.span
    if chart.noise:
        axes.fill_between(places, low, [value if chart.good(value) else low for value in chart.noise], color="0.92", label="noise", zorder=0)
    every = max(1, math.ceil(len(chart.labels) / 14))
    axes.set_xticks(places[::every], list(chart.labels)[::every])
    axes.set(xlabel=chart.across, ylabel=chart.up, title=chart.title, yscale="log" if chart.log else "linear", ylim=(low, high))
    axes.legend(fontsize="x-small", frameon=False)


def _matrix(figure: Any, report: Report) -> None:
    """Ratios by component and, for each implementation, dtype; what fails is red."""
    summary = report.summary
    assert summary is not None
    components = list(dict.fromkeys(component for component, _ in summary.rows))
    columns = [(column, dtype) for column in summary.columns for dtype in report.options.dtypes]
    axes = figure.subplots()
    cells = [[summary.cell((component, dtype), column) for column, dtype in columns] for component in components]
    texts = [["✗" if c.failed else "–" if not c.compared else f"{c.ratio:.2f}" if math.isfinite(c.ratio) else "pass" for c in row] for row in cells]
    colours = [["#f7c9c4" if c.failed else "#eeeeee" if not c.compared else "#e3f2e9" for c in row] for row in cells]
    heads = [f"{NAMES.get(column[0], column[0])}\n{dtype.replace('float', 'f').replace('bf', 'bf')}" for column, dtype in columns]
    table = axes.table(texts, cellColours=colours, rowLabels=components, colLabels=heads, loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    table.scale(1, 1.6)
    axes.set_axis_off()
    axes.set_title("error in units of plain NumPy's", loc="left", fontsize="small")


def _attention(figure: Any, one: Attention, layer: int) -> None:
    """Of every head a row of weights, and a row of differences from the reference."""
    names, reference_hts = list(one.found_lhts), one.reference_lhts[layer]
    grid = figure.subplots(2 * len(reference_hts), len(names), squeeze=False)
    figure.suptitle(f"{one.name}, layer {layer}, {one.dtype}: weights, and difference from the float64 reference", fontsize="small")
    for (head, reference_ts), (column, name) in itertools.product(enumerate(reference_hts), enumerate(names)):
        found_ts = one.found_lhts[name][layer, head]
        away_ts = found_ts - reference_ts
        widest = max(float(np.abs(one.found_lhts[other][layer, head] - reference_ts).max()) for other in names) or 1.0
        above, below = grid[2 * head, column], grid[2 * head + 1, column]
        above.imshow(found_ts, vmin=0, vmax=float(reference_ts.max()), cmap="Blues", interpolation="nearest")
        below.imshow(away_ts, vmin=-widest, vmax=widest, cmap="RdBu_r", interpolation="nearest")
        largest = float(np.abs(away_ts).max())
        above.set_title(f"{NAMES[name]}, head {head}", fontsize=7)
        below.set_title(f"at most {largest:.1e} = {largest / one.noise_l[layer]:.2f} × noise", fontsize=7)
        for axes in (above, below):
            axes.set(xticks=[], yticks=[])


def _speed(figure: Any, report: Report) -> None:
    assert report.speed is not None
    rows = [timing for timing in report.speed.timings if timing.samples_ms]
    axes, places = figure.subplots(), np.arange(len(rows), 0, -1)
    errors = np.array([[row.median_ms - row.quartiles_ms[0], row.quartiles_ms[1] - row.median_ms] for row in rows]).T
    bars = axes.barh(places, [row.median_ms for row in rows], xerr=errors, color=[COLOURS[row.name] for row in rows], error_kw={"elinewidth": 1})
    axes.bar_label(bars, [f"{row.median_ms:.3g}" for row in rows], fontsize="x-small", padding=3)
    axes.set_yticks(places, [f"{row.what}: {NAMES[row.name]} {row.mode}" for row in rows], fontsize="small")
    axes.set(xlabel="median ms", title=f"{report.speed.tokens}, float32, {report.speed.threads} threads")


def _memory(figure: Any, report: Report) -> None:
    assert report.speed is not None
    names = list(report.speed.peaks)
    axes = figure.subplots()
    axes.barh(names, [report.speed.peaks[name] for name in names], color=[COLOURS[name] for name in names], label="peak")
    axes.barh(names, [report.speed.alone[name] for name in names], color="none", hatch="///", edgecolor="white", label="framework alone")
    axes.set_yticks(range(len(names)), [NAMES[name] for name in names])
    axes.set(xlabel="MiB of the process at its peak; hatched: with the framework alone")
    axes.invert_yaxis()
