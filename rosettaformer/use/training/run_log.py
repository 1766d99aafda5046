"""Writes a run's log, draws its curves, and prints its progress."""

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from reference_numpy.fields import is_number

from ...common import pictures
from ...common.atomic import replacing
from ...common.reading import parse_json
from . import schema, words

LONGEST = 10_000  # bytes of the longest entry
SMOOTHED = 50  # most points in the curve of the training loss, each a mean of several steps
RECENT = 0.95  # weight of the past in running means
EVERY = 60.0  # seconds between two lines without a terminal
_TEXTS: schema.Table = {
    "event": schema.choice("start", "step", "validation", "test"), "backend": schema.text(100), "checkpoint": schema.text(100),
}  # fmt: skip
_NUMBER: schema.Check = (lambda value: is_number(value) or isinstance(value, float), "a number")  # a loss may be NaN


class Log:
    """Appends a JSON object to a log file for every step and every validation.

    Opening it removes the entries after step `steps`, since these steps will run again.
    """

    def __init__(self, path: Path, steps: int) -> None:
        if path.exists():
            with replacing(path) as temporary:
                temporary.write_bytes(b"".join(line for line, entry in _lines(path) if entry["step"] <= steps))
        self._file = path.open("ab", buffering=0)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Appends an entry, which must have a step. Raises OSError if the disk is full."""
        line = json.dumps(dict(entry)).encode() + b"\n"
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def sync(self) -> None:
        """Flushes the entries to the disk, so that no checkpoint is newer than its log."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Unlogged:
    """The log of all processes but the first: discards entries."""

    def write(self, entry: Mapping[str, Any]) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


def read_log(path: Path) -> list[dict[str, Any]]:
    """Reads a log; skips an incomplete last line, which a kill or a full disk may leave.

    Raises ValueError naming any other malformed line.
    """
    return [entry for _, entry in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), start=1):
            if len(line) <= LONGEST and not line.endswith(b"\n"):
                return
            try:
                yield line, _entry(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}. Remove the line") from None


def _entry(line: bytes) -> dict[str, Any]:
    if len(line) > LONGEST:
        raise ValueError(f"an entry must have at most {LONGEST} bytes; it has more")
    entry = parse_json(line)
    numbers = {name: _NUMBER for name in entry if name not in _TEXTS} if isinstance(entry, dict) else {}
    texts = {name: check for name, check in _TEXTS.items() if name == "event" or (isinstance(entry, dict) and name in entry)}
    if problems := schema.problems(entry, {**numbers, **texts, "step": schema.integer()}):
        raise ValueError("; ".join(problems[:3]))
    return entry


def draw_curves(entries: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> None:
    """Draws losses and scores into files; the suffix sets the format (.png, .svg)."""
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
        pictures.save(figure, path)


def _scores(axes: Any, validations: Sequence[Mapping[str, Any]]) -> None:
    axes.set(ylim=(0, 100), ylabel="score")
    axes.plot(*_column(validations, "exact_match"), color="C2", linestyle="--", marker=".", label="exact match")


def _column(entries: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    present = [entry for entry in entries if name in entry]
    return [entry["step"] for entry in present], [entry[name] for entry in present]


def _means(steps: Sequence[int], values: Sequence[float]) -> tuple[list[float], list[float]]:
    parts = min(SMOOTHED, len(steps))
    return tuple([float(part.mean()) for part in np.array_split(np.array(column), parts)] for column in (steps, values))  # type: ignore[return-value]


class Report:
    """Prints to standard error: a line per event, and in a terminal a progress bar inside `bar`.

    speed: recent tokens per second, source and target together, without padding. quiet: prints
    nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
        columns = TextColumn("step {task.fields[step]}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn()
        self.bar = Progress(*columns, console=self.console, transient=True, disable=quiet or not self.console.is_terminal)
        self._task = self.bar.add_task("training", total=1.0, step=0, now="")
        self._loss = self.speed = 0.0
        self._seen = 0
        self._last = self._said = time.monotonic()
        self._began: tuple[float, float] | None = None

    def say(self, text: str) -> None:
        """Prints a line."""
        self.console.print(text, soft_wrap=True)

    def step(self, number: int, loss: float, tokens: int, share: float) -> None:
        """Updates the display. tokens: real ones of the batch. share: completed part, 0 to 1."""
        now = time.monotonic()
        self._seen += 1
        weight = min(RECENT, 1 - 1 / self._seen)  # a plain mean over the first steps
        self._loss += (1 - weight) * (loss - self._loss)
        self.speed += (1 - weight) * (tokens / max(now - self._last, 1e-9) - self.speed)
        self._last = now
        self.bar.update(self._task, completed=share, step=number, now=f"{words.now(self._loss, self.speed)}, left")
        if not self.console.is_terminal:
            self._now_and_then(number, share, now)

    def _now_and_then(self, number: int, share: float, now: float) -> None:
        """Prints a line with the remaining time now and then, for output without a terminal."""
        began, before = self._began = self._began or (now, share)
        if now - self._said > EVERY:
            self._said = now
            rest = (now - began) * (1 - share) / max(share - before, 1e-9)
            self.say(words.left(number, self._loss, self.speed, rest / 60))

    def scores(self, title: str, values: dict[str, Any]) -> None:
        """Prints the scores of an evaluation."""
        self.say(words.scores(title, values))
        self._last = time.monotonic()  # excludes evaluation from the speed
