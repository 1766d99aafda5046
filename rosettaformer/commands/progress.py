"""Progress on standard error: a bar in a terminal, otherwise a line every 15 seconds."""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..judge.report.matrix import duration
from ..judge.result import Result
from . import words

EVERY = 15.0  # seconds between lines
ENOUGH = 5  # cases before the first estimate


class Working:
    """Context manager that shows the progress of a long task."""

    def __init__(self, what: str, total: float | None = None, usual: str = "", unit: str = "", console: Console | None = None) -> None:
        """total: the number of units to count. usual: a first line about the usual duration."""
        self._console = console or Console(stderr=True)
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._what, self._total, self._usual, self._unit, self._done = what, total, usual, unit, 0.0
        self._task = self._bar.add_task(what, total=total)
        self._started = self._said = self._first = time.monotonic()

    def __enter__(self) -> Self:
        if self._usual:
            self.say(f"{self._what}, {self._usual} ...")
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line."""
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def expect(self, total: float) -> None:
        """Sets the number of units to count."""
        self._total = total
        self._bar.update(self._task, total=total)

    def at(self, what: str) -> None:
        """Sets the description of the current step."""
        self._what = what
        self._bar.update(self._task, description=what)
        self._now_and_then()

    def advance(self, count: float = 1) -> None:
        """Counts finished units."""
        self._first = self._first if self._done else time.monotonic()  # one-time work, such as an import, is not counted
        self._done += count
        self._bar.update(self._task, completed=self._done)
        self._now_and_then()

    def to(self, done: float) -> None:
        """Sets the number of finished units."""
        self.advance(done - self._done)

    def _now_and_then(self) -> None:
        if not self._console.is_terminal and time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            self.say(f"{self._what}: {self._so_far()}")

    def _so_far(self) -> str:
        now = time.monotonic()
        if not (self._total and self._done):
            return duration(now - self._started)
        rest = (now - self._first) / max(1, self._done - 1) * (self._total - self._done)
        left = duration(rest) if self._done >= ENOUGH and rest > 0 else ""
        return words.so_far(self._done, self._total, self._unit, duration(now - self._started), left)


class Checking(Working):
    """Progress of a run of ports; `begin` and `answered` are callbacks for `runner.run`."""

    def __init__(self, ports: Sequence[str], cases: int, console: Console | None = None) -> None:
        """cases: the maximum per port, until the port reports how many it covers."""
        self._expected, self._all = cases, len(ports) * cases
        super().__init__(words.starting(ports), self._all, words.at_most(self._all), "cases", console)

    def begin(self, port: str, modes: Counter[str]) -> None:
        """Announces the cases of a port that has started, by mode."""
        for mode, count in modes.items():
            self.say(words.running(port, count, mode == "compiled"))
        self._asked(sum(modes.values()))
        self.at(words.CHECKING)

    def answered(self, result: Result) -> None:
        """Counts the result of a case."""
        if not result.component:  # the port failed to start
            self._asked(0)
        elif result.seconds:
            self.advance()

    def _asked(self, cases: int) -> None:
        """Replaces the maximum number of cases of one port by its actual number."""
        self._all += cases - self._expected
        self.expect(self._all)


class Writing:
    """Context manager that shows the progress of writing a checkpoint; `written` is a callback."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        """total: bytes of all tensors."""
        self._console = console or Console(stderr=True)
        columns = (TextColumn(words.WRITING), BarColumn(), DownloadColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(words.WRITING, total=total)
        self._total, self._done, self._said = total, 0, time.monotonic()

    def __enter__(self) -> "Writing":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def written(self, count: int) -> None:
        """Counts written bytes."""
        self._done += count
        self._bar.update(self._task, completed=self._done)
        if not self._console.is_terminal and time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            self._console.print(words.written(self._done, self._total), highlight=False)
