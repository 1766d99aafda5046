"""Draws the figures of a report to files, with matplotlib."""

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...common import pictures
from ...judge.report.grouping import SHORT
from ...judge.summary import Cell
from ..engine.speed import Speed
from ..one_model.implementations import NAMES
from ..one_model.layer_errors import Attention
from ..one_model.making import Report
from . import charts
from .charts import COLOURS

FORMATS = (".png", ".svg")
MARK = "report.json"  # the numbers, which mark a folder of figures
Figures = Iterator[tuple[str, Callable[[Any], None], tuple[float, float]]]


def is_ours(folder: Path) -> bool:
    """Returns whether the folder may be replaced: it is missing, empty, or contains only figures."""
    if not folder.exists():
        return True
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else [""]
    return not names or (MARK in names and all(name == MARK or Path(name).suffix in FORMATS for name in names))


def write(folder: Path, report: Report, progress: Callable[[str], None]) -> int:
    """Draws every figure into an existing folder, as PNG and SVG, and returns their number."""
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
    """Yields the name, drawing function and size of every figure."""
    if report.summary:
        size = 3 + 2.5 * len(report.present), 1.6 + 0.4 * len({component for component, _ in report.summary.rows})
        yield "matrix", functools.partial(_matrix, report=report), size
    drawn = [*charts.layer_charts(report.layers)] if report.layers and report.layers.outputs else []
    drawn += charts.training_charts(report.curves) if report.curves and report.curves.found else []
    for chart in filter(None, [*drawn, charts.recorded_chart(report.subject.log)]):
        yield chart.key, functools.partial(charts.draw, chart=chart), charts.SIZE
    for one in report.layers.attention if report.layers and "attention" in report.options.sections else ():
        size = 2.2 * len(one.found_lhts) + 3.7, 1.2 + 2.3 * one.reference_lhts.shape[1]
        for layer in range(len(one.reference_lhts)):
            yield f"{one.name.replace(' ', '-')}-layer-{layer:02}", functools.partial(_attention, one=one, layer=layer), size
    if report.speed:
        yield "speed", functools.partial(_speed, speed=report.speed), (8, 2.4 + 0.4 * len(report.speed.timings))
        yield "memory", functools.partial(_memory, speed=report.speed), (8, 2.6)


def _matrix(figure: Any, report: Report) -> None:
    """Draws the ratios by component, implementation and dtype, with failures in red."""
    summary = report.summary
    assert summary is not None
    components = list(dict.fromkeys(component for component, _ in summary.rows))
    columns = [(column, dtype) for column in summary.columns for dtype in report.options.dtypes]
    axes = figure.subplots()
    cells = [[_cell(summary.cell((component, dtype), column)) for column, dtype in columns] for component in components]
    texts, colours = ([[cell[part] for cell in row] for row in cells] for part in (0, 1))
    heads = [f"{NAMES.get(column[0], column[0])}\n{SHORT[dtype]}" for column, dtype in columns]
    table = axes.table(texts, cellColours=colours, rowLabels=components, colLabels=heads, loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    table.scale(1, 1.6)
    axes.set_axis_off()
    axes.set_title("error / NumPy's rounding error", loc="left", fontsize="small")


def _cell(cell: Cell) -> tuple[str, str]:
    """Returns the text of a cell, and its color."""
    if cell.failed:
        return "✗", "#f7c9c4"
    if not cell.compared:
        return "–", "#eeeeee"
    return f"{cell.ratio:.2f}" if math.isfinite(cell.ratio) else "pass", "#e3f2e9"


def _attention(figure: Any, one: Attention, layer: int) -> None:
    """Draws the reference's weights of every head, and the differences of each implementation."""
    names, reference_hts = list(one.found_lhts), one.reference_lhts[layer]
    grid = figure.subplots(len(reference_hts), 1 + len(names), squeeze=False)
    figure.suptitle(f"{one.name}, layer {layer}, {one.dtype}: weights of the float64 reference, and differences", fontsize="small")
    for head, weights_ts in enumerate(reference_hts):
        low, high, how = float(weights_ts[weights_ts > 0].min()), float(weights_ts.max()), ", even" if one.even(layer, head) else ""
        attended_ts = np.where(weights_ts > 0, weights_ts, np.nan)
        grid[head, 0].imshow(attended_ts, vmin=low, vmax=high, cmap="Blues", interpolation="nearest")
        grid[head, 0].set_title(f"head {head}: {low:.3g} to {high:.3g}{how}", fontsize=7)
        away = {name: one.found_lhts[name][layer, head] - weights_ts for name in names}
        largest = {name: float(np.abs(away_ts).max()) for name, away_ts in away.items()}
        widest = max(largest.values(), default=0.0) or 1.0
        for axes, name in zip(grid[head, 1:], names, strict=True):
            axes.imshow(away[name], vmin=-widest, vmax=widest, cmap="RdBu_r", interpolation="nearest")
            axes.set_title(f"{NAMES[name]}: {largest[name]:.1e} = {largest[name] / one.noise_l[layer]:.2f} × noise", fontsize=7)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])


def _speed(figure: Any, speed: Speed) -> None:
    """Draws medians with quartiles, one axis per kind."""
    kinds = dict.fromkeys(timing.what for timing in speed.timings)
    for axes, kind in zip(figure.subplots(len(kinds), squeeze=False)[:, 0], kinds, strict=True):
        rows = [timing for timing in speed.timings if timing.what == kind and timing.samples_ms]
        places, medians = np.arange(len(rows), 0, -1), [row.median_ms for row in rows]
        errors = np.array([[row.median_ms - row.quartiles_ms[0], row.quartiles_ms[1] - row.median_ms] for row in rows]).reshape(-1, 2).T
        bars = axes.barh(places, medians, xerr=errors, color=[COLOURS[row.name] for row in rows], error_kw={"elinewidth": 1})
        axes.bar_label(bars, [f"{median:.3g}" for median in medians], fontsize="x-small", padding=3)
        axes.set_yticks(places, [f"{NAMES[row.name]} {row.mode}" for row in rows], fontsize="small")
        axes.set(xlabel="median ms")
        axes.set_title(f"{kind}: {speed.tokens}, float32, {speed.threads} threads", loc="left", fontsize="medium")


def _memory(figure: Any, speed: Speed) -> None:
    names = list(speed.peaks)
    axes = figure.subplots()
    axes.barh(names, [speed.peaks[name] for name in names], color=[COLOURS[name] for name in names], label="peak")
    axes.barh(names, [speed.alone[name] for name in names], color="none", hatch="///", edgecolor="white", label="framework only")
    axes.set_yticks(range(len(names)), [NAMES[name] for name in names])
    axes.set(xlabel="peak MiB of the process; hatched: framework only")
    axes.invert_yaxis()
