"""The curves of a report."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .chart import Chart, Points
from .layer_errors import Layers, OutputError
from .training import Curves
from .workers import NAMES


def layer_charts(found: Layers) -> Iterator[Chart]:
    """Yields for each dtype the error after every layer, in units of the layer's largest value."""
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
    """Returns the error of an implementation, in units of the largest value."""
    return row.found[name].error / (row.largest or 1.0) if row and name in row.found else math.nan


def _short(name: str, several: bool) -> str:
    stack, *rest = name.split()
    return (stack[0] if several else "") + ("emb" if rest == ["embedding"] else rest[-1])


def training_charts(curves: Curves) -> Iterator[Chart]:
    """Yields loss and gradient norm, and how far each is from the reference's in units of its noise."""
    labels = [str(step + 1) for step in range(len(curves.losses))]
    for kind, (key, title, expected) in enumerate((("loss", "loss", curves.losses), ("gradient-norm", "gradient norm", curves.norms))):
        found = {name: [pair[kind] for pair in pairs] for name, pairs in curves.found.items()}
        yield Chart(key, title, "step", title, labels, {"reference": [float(one.reference) for one in expected], **found})
        away = {name: [pair[kind] for pair in curves.units(name)] for name in curves.found}
        noise = [1.0] * len(labels)
        yield Chart(f"{key}-difference", f"difference of the {title}", "step", "× noise", labels, away, noise, log=True)


def recorded_chart(log: Sequence[Mapping[str, Any]], parts: int = 60) -> Chart | None:
    """Returns what a run recorded of its own training: its losses, averaged over parts of it, and its validation losses; None if it
    recorded none.
    """
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
