"""Draws bars of medians, one panel per table, and scaling curves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rosettaformer.common import pictures

from .benchmark_report import Report, label
from .timed_rows import Result
from .workloads import Series, Task

COLOURS = {"ours": "C0", "peer": "0.65", "ceiling": "0.85"}


def draw(path: Path, report: Report) -> None:
    """Draws to a file whose suffix selects the format."""
    from matplotlib.figure import Figure

    tables = [(task, _timed(results)) for task, results in report.tables if _timed(results)]
    heights = [1.2 + 0.3 * len(results) for _, results in tables] + [3.5] * len(report.series)
    if not heights:
        raise ValueError("nothing to draw: no row was timed")
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    for place, (task, results) in enumerate(tables):
        _bars(figure.add_subplot(grid[place, :]), task, results)
    for place, (series, points) in enumerate(report.series, len(tables)):
        _curves(figure.add_subplot(grid[place, 0]), figure.add_subplot(grid[place, 1]), series, points)
    figure.supxlabel("grey: peers; light grey: matrix products only; * not compared; lines: quartiles", fontsize="small")
    pictures.save(figure, path)


def _bars(axes: Any, task: Task, results: Sequence[Result]) -> None:
    places = range(len(results), 0, -1)
    medians = [result.median_ms for result in results]
    below = [result.median_ms - result.quartiles_ms[0] for result in results]  # type: ignore[operator, index]
    above = [result.quartiles_ms[1] - result.median_ms for result in results]  # type: ignore[operator, index]
    colours = [COLOURS["ceiling" if result.ceiling else "peer" if result.peer else "ours"] for result in results]
    axes.barh(places, medians, xerr=[below, above], color=colours, error_kw={"elinewidth": 1})
    for place, result in zip(places, results, strict=True):
        axes.annotate(f" {result.median_ms:.1f}", (result.median_ms, place), va="bottom", fontsize="x-small")
    axes.set_yticks(list(places), [label(result) for result in results], fontsize="small")
    axes.set_title(task.title, loc="left", fontsize="medium")
    axes.set(xlabel="ms", xlim=(0, None))


def _curves(time: Any, memory: Any, series: Series, points: Sequence[tuple[int, Sequence[Result]]]) -> None:
    """Draws milliseconds (per token if new tokens vary) and MiB."""
    by_token = series.axis == "new tokens"
    names = dict.fromkeys(label(result) for _, results in points for result in _timed(results))
    for name in names:
        found = [(value, result) for value, results in points for result in _timed(results) if label(result) == name]
        style = {"marker": ".", "label": name, "linestyle": "--" if found[0][1].peer else "-"}
        time.plot([value for value, _ in found], [result.median_ms / (value if by_token else 1) for value, result in found], **style)  # type: ignore[operator]
        kept = [(value, result.memory_mib) for value, result in found if result.memory_mib]
        memory.plot([value for value, _ in kept], [mib for _, mib in kept], **style)
    time.set(title=series.name, ylabel="ms a token" if by_token else "ms")
    memory.set(ylabel="peak MiB of a call")
    for axes in (time, memory):
        axes.set(xlabel=series.axis, xscale="log", yscale="log")
        axes.set_xticks([value for value, _ in points], [str(value) for value, _ in points], minor=False)
        axes.minorticks_off()
    if by_token:
        time.set(yscale="linear", ylim=(0, None))  # nearly constant
    time.legend(fontsize="x-small", frameon=False)


def _timed(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.status == "timed" and result.median_ms is not None]
