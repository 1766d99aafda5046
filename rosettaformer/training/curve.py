"""The picture of a run: loss and scores over steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.replacing import replacing

__all__ = ["draw"]

SMOOTHED = 50  # the curve of the training loss is the mean of at most as many parts


def draw(entries: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> None:
    """Draws the log's training loss, validation loss and scores into files, whose suffixes name the format (.png, .svg)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    steps = [entry for entry in entries if entry.get("event") == "step"]
    validations = [entry for entry in entries if entry.get("event") == "validation"]
    if steps:
        axes.plot(*_column(steps, "loss"), color="C0", alpha=0.25, linewidth=0.8)
        axes.plot(*_means(*_column(steps, "loss")), color="C0", label="training loss (with smoothing)")
    if validations:
        axes.plot(*_column(validations, "loss"), color="C1", marker=".", label="validation loss")
        _scores(axes.twinx(), validations)
    axes.set(xlabel="step", ylabel="loss per token", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    for path in paths:
        with replacing(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], dpi=150)


def _scores(axes: Any, validations: Sequence[Mapping[str, Any]]) -> None:
    axes.set(ylim=(0, 100), ylabel="score")
    for index, name in enumerate(name for name in ("exact_match", "bleu") if name in validations[-1]):
        axes.plot(*_column(validations, name), color=f"C{index + 2}", linestyle="--", marker=".", label=name.replace("_", " "))


def _column(entries: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    present = [entry for entry in entries if name in entry]
    return [entry["step"] for entry in present], [entry[name] for entry in present]


def _means(steps: Sequence[int], values: Sequence[float]) -> tuple[list[float], list[float]]:
    parts = min(SMOOTHED, len(steps))
    return tuple([float(part.mean()) for part in np.array_split(np.array(column), parts)] for column in (steps, values))  # type: ignore[return-value]
