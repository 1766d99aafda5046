"""Line charts as data, which the page and matplotlib draw alike."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .layer_errors import Layers, OutputError
from .training import Curves
from .workers import NAMES

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 46  # margins of the plot
DECADES = 7  # at most this many labels on a logarithmic axis

Points = Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """Curves by name over the same positions. labels: of the positions. noise: the height of the filled area. log: whether the value axis
    is logarithmic.

    A value that is not finite, or 0 on a logarithmic axis, has no point and breaks the curve; a curve passes over None.
    """

    key: str
    title: str
    across: str
    up: str
    labels: Sequence[str]
    curves: Mapping[str, Points]
    noise: Points = ()
    log: bool = False

    @property
    def _values(self) -> list[float]:
        return [value for curve in (*self.curves.values(), self.noise) for value in curve if self.good(value)]  # type: ignore[misc]

    def good(self, value: float | None) -> bool:
        """Whether the value has a point."""
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)

    @property
    def span(self) -> tuple[float, float]:
        """The ends of the value axis."""
        values = self._values or [1.0]
        low, high = min(values), max(values)
        if self.log:
            return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) + 1e-9 + (low == high))
        step = self._step
        return math.floor(low / step) * step, math.ceil(high / step + 1e-9) * step

    @property
    def _step(self) -> float:
        """The distance between two labels of a linear axis."""
        values = self._values or [1.0]
        span = max(values) - min(values) or abs(max(values)) or 1.0
        power = 10.0 ** math.floor(math.log10(span / 4))
        return next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= 7)

    @property
    def ticks(self) -> list[float]:
        """The values that are labelled."""
        low, high = self.span
        if self.log:
            first, last = round(math.log10(low)), round(math.log10(high))
            every = max(1, math.ceil((last - first) / DECADES))
            between = [factor * 10.0**power for power in range(first, last) for factor in (2, 5)] if last - first <= 2 else []
            return sorted([10.0**power for power in range(first, last + 1, every)] + between)
        return [low + self._step * index for index in range(round((high - low) / self._step) + 1)]

    def tick(self, value: float) -> str:
        """Returns the label of a tick: on a linear axis with enough digits to tell it from its neighbours."""
        if self.log:
            return number(value, 1)
        if abs(value) < self._step / 1000:
            return "0"
        last = math.floor(math.log10(self._step) + 1e-9)  # the power of ten of the last digit
        if abs(value) >= 1e5 or last < -5:
            return number(value, max(1, math.floor(math.log10(abs(value)) + 1e-9) - last + 1))
        return f"{value:,.{max(0, -last)}f}"

    @property
    def marks(self) -> list[tuple[float, str]]:
        """The labelled positions, with their labels: as many as fit."""
        every = max(1, math.ceil(len(self.labels) / 14))
        return [(self.x(index), label) for index, label in enumerate(self.labels) if index % every == 0]

    def x(self, index: int) -> float:
        """Returns the x coordinate of a position."""
        count = max(1, len(self.labels) - 1)
        return LEFT + 8 + (WIDTH - LEFT - RIGHT - 16) * (index / count if len(self.labels) > 1 else 0.5)

    def y(self, value: float) -> float:
        """Returns the y coordinate of a value."""
        low, high = (math.log10(end) for end in self.span) if self.log else self.span
        share = ((math.log10(value) if self.log else value) - low) / (high - low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def points(self, name: str) -> list[tuple[float, float]]:
        """Returns the points of a curve."""
        return [(self.x(index), self.y(value)) for index, value in enumerate(self.curves[name]) if self.good(value)]  # type: ignore[arg-type]

    def path(self, name: str) -> str:
        """Returns the curve as an SVG path, broken where it has no point."""
        return " ".join(self._moves(self.curves[name]))

    @property
    def area(self) -> str:
        """The area below the noise, as an SVG path."""
        parts = []
        for start, stop in _runs([self.good(value) for value in self.noise]):
            line = " ".join(f"L{self.x(index):.1f} {self.y(self.noise[index]):.1f}" for index in range(start, stop))  # type: ignore[arg-type]
            bottom = HEIGHT - BOTTOM
            parts.append(f"M{self.x(start):.1f} {bottom} {line} L{self.x(stop - 1):.1f} {bottom} Z")
        return " ".join(parts)

    def _moves(self, curve: Points) -> Iterator[str]:
        fresh = True
        for index, value in enumerate(curve):
            if self.good(value):
                yield f"{'M' if fresh else 'L'}{self.x(index):.1f} {self.y(value):.1f}"  # type: ignore[arg-type]
            if value is not None:
                fresh = not self.good(value)

    @property
    def plot(self) -> dict[str, int]:
        """The edges of the plot."""
        return {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM}


def _runs(good: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yields where runs of True begin and end."""
    start = None
    for index, one in enumerate([*good, False]):
        if one and start is None:
            start = index
        elif not one and start is not None:
            yield start, index
            start = None


def number(value: Any, digits: int = 2) -> str:
    """Returns the value to a few digits; a dash if there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if value == 0:
        return "0"
    if size < 1e-3 or size >= 1e5:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{digits}g}" if size < 10 ** (digits - 1) else f"{value:,.0f}" if size >= 100 else f"{value:.3g}"


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
