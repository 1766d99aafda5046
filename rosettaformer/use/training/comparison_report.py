"""Shows a comparison of training runs: in a terminal, as JSON, as a picture."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...common import pictures
from ...common.outputs import versioned
from ...judge.summary import jsonable
from .comparison import Experiment, Gap, Run

REFERENCE = "reference"
SEVERAL = "*"


def verdict(run: Run) -> str:
    """Summarizes the run of a backend in a sentence."""
    if run.divergence:
        where = ", ".join(f"{gap.name} is {gap.distance:.2g} away, allowed {gap.allowed:.2g}" for gap in run.divergence.leaves)
        return f"{run.backend} leaves the reference at step {run.divergence.number}: {where}"
    if run.status != "together":
        return f"{run.backend}: {run.status}, {run.message}"
    worst = max((gap for step in run.steps for gap in (step.loss, step.parameter)), key=lambda gap: gap.excess)
    return (
        f"{run.backend} matches the reference for {len(run.steps)} steps; closest to its limit is {worst.name}, "
        f"{worst.distance:.2g} away, allowed {worst.allowed:.2g}"
    )


def render(console: Console, losses: Sequence[float], runs: Sequence[Run]) -> None:
    """Prints the curves, a table for each backend, and the verdicts."""
    curves = {REFERENCE: losses} | {run.backend: [step.value for step in run.steps] for run in runs if run.steps}
    for line in chart(curves):
        console.print(line, markup=False, highlight=False)
    for run in runs:
        if run.steps:
            console.print(_table(run, losses))
    for run in runs:
        console.print(f"[{'green' if run.status == 'together' else 'red'}]{escape(verdict(run))}[/]", highlight=False, soft_wrap=True)


def chart(curves: Mapping[str, Sequence[float]], height: int = 8) -> Iterator[str]:
    """Draws curves in characters, one column per step: the curve's number, or * if several meet."""
    values = [value for curve in curves.values() for value in curve if math.isfinite(value)]
    if not values:
        return
    low, high = min(values), max(values)
    rows = [[" "] * max(map(len, curves.values())) for _ in range(height)]
    for number, curve in enumerate(curves.values()):
        for column, value in enumerate(curve):
            if math.isfinite(value):
                row = rows[round((high - value) / ((high - low) or 1.0) * (height - 1))]
                row[column] = str(number) if row[column] == " " else SEVERAL
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    for index, row in enumerate(rows):
        yield f"{labels.get(index, ''):>8} |{' '.join(row)}"
    legend = ", ".join(f"{number} {name}" for number, name in enumerate(curves))
    yield f"{'':8}  loss by step: {legend}, {SEVERAL} several"


def _table(run: Run, losses: Sequence[float]) -> Table:
    table = Table(title=run.backend, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    columns = ("step", "reference loss", "loss", "away", "allowed", "parameter closest to its limit", "away", "allowed")
    for column in columns:
        table.add_column(column, justify="left" if column.startswith("parameter") else "right", overflow="fold")
    for step, loss in zip(run.steps, losses, strict=False):
        cells = str(step.number), f"{loss:.6f}", f"{step.value:.6f}", *_numbers(step.loss), step.parameter.name, *_numbers(step.parameter)
        table.add_row(*cells, style="red" if step.leaves else None)
    return table


def _numbers(gap: Gap) -> tuple[str, str]:
    return f"{gap.distance:.1e}", f"{gap.allowed:.1e}"


def to_dict(experiment: Experiment, losses: Sequence[float], runs: Sequence[Run]) -> dict[str, Any]:
    """Returns every number as JSON data; non-finite numbers become None."""
    fields = {
        "config": experiment.config.to_dict(),
        "recipe": experiment.recipe.to_dict(),
        "dtype": str(next(iter(experiment.values.values())).dtype),
        "seed": experiment.seed,
        "steps": experiment.steps,
        "verdict": "together" if all(run.status == "together" for run in runs) else "differs",
        "reference": {"loss": list(losses)},
        "backends": [jsonable(dataclasses.asdict(run) | {"verdict": verdict(run), "divergence": _divergence(run)}) for run in runs],
    }
    return versioned("compare-training", fields)


def _divergence(run: Run) -> dict[str, Any] | None:
    step = run.divergence
    return {"step": step.number, "names": [gap.name for gap in step.leaves]} if step else None


def draw(path: Path, losses: Sequence[float], runs: Sequence[Run]) -> None:
    """Draws the losses, and below them the share of its bound that each backend uses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    above.plot(np.arange(1, len(losses) + 1), losses, color="0.7", linewidth=6, label=REFERENCE)
    for index, run in enumerate(run for run in runs if run.steps):
        numbers = [step.number for step in run.steps]
        dashes = (3 * index, (3, 6))  # makes coinciding curves visible
        above.plot(numbers, [step.value for step in run.steps], color=f"C{index}", linestyle=dashes, label=run.backend)
        used = [max(step.loss.excess, step.parameter.excess) for step in run.steps]
        below.plot(numbers, used, color=f"C{index}", marker=".", label=run.backend)
    below.axhline(1, color="black", linestyle="--", label="allowed")
    above.set(ylabel="loss")
    below.set(xlabel="step", ylabel="distance / allowed", yscale="log")
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    pictures.save(figure, path)
