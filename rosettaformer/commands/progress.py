"""Reports the progress of a long run on standard error: a bar in a terminal, otherwise a line now and then."""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..judge.report.matrix import duration
from ..judge.result import Result

EVERY = 15.0  # seconds between two lines
ENOUGH = 5  # cases before the first estimate


class Working:
    """The progress of one long piece of work. Use as a context manager."""

    def __init__(self, what: str, total: float | None = None, usual: str = "", unit: str = "", console: Console | None = None) -> None:
        """total: of what `advance` counts, in units. usual: how long it usually takes, which is said at the start."""
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
        """Sets the total."""
        self._total = total
        self._bar.update(self._task, total=total)

    def at(self, what: str) -> None:
        """Says what is being done now."""
        self._what = what
        self._bar.update(self._task, description=what)
        self._now_and_then()

    def advance(self, count: float = 1) -> None:
        """Counts what has been done since the last call."""
        self._first = self._first if self._done else time.monotonic()  # after one-time work, such as an import
        self._done += count
        self._bar.update(self._task, completed=self._done)
        self._now_and_then()

    def to(self, done: float) -> None:
        """Sets how much has been done."""
        self.advance(done - self._done)

    def _now_and_then(self) -> None:
        if not self._console.is_terminal and time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            self.say(f"{self._what}: {self._so_far()}")

    def _so_far(self) -> str:
        now = time.monotonic()
        if not (self._total and self._done):
            return duration(now - self._started)
        text = f"{self._done:.0f} of {self._total:.0f} {self._unit}".rstrip() + f" after {duration(now - self._started)}"
        rest = (now - self._first) / max(1, self._done - 1) * (self._total - self._done)
        return text + (f", about {duration(rest)} left" if self._done >= ENOUGH and rest > 0 else "")


class Checking(Working):
    """The progress of a run of ports; `begin` and `answered` are callbacks for `runner.run`."""

    def __init__(self, ports: Sequence[str], cases: int, console: Console | None = None) -> None:
        """cases: the most that each port may be asked, until the port says how many it covers."""
        self._expected, self._all = cases, len(ports) * cases
        super().__init__(f"starting {', '.join(ports)}", self._all, f"{self._all} comparisons at most", "cases", console)

    def begin(self, port: str, modes: Counter[str]) -> None:
        """Announces what a port that has started is asked, and what takes long before it does."""
        for mode, count in modes.items():
            self.say(f"compiling {port}: {count} cases, each compiled ..." if mode == "compiled" else f"running {port}: {count} cases ...")
        self._asked(sum(modes.values()))
        self.at("checking")

    def answered(self, result: Result) -> None:
        """Counts a result of a case that the port was asked."""
        if not result.component:  # the port did not start
            self._asked(0)
        elif result.seconds:
            self.advance()

    def _asked(self, cases: int) -> None:
        """Sets the number of cases that one of the ports will be asked."""
        self._all += cases - self._expected
        self.expect(self._all)


class Writing:
    """The progress of writing a checkpoint. Use as a context manager; `written` is a callback for `checkpoints.save`."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        """total: bytes of tensors."""
        self._console = console or Console(stderr=True)
        columns = (TextColumn("writing"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("writing", total=total)
        self._total, self._done, self._said = total, 0, time.monotonic()

    def __enter__(self) -> "Writing":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def written(self, count: int) -> None:
        """Counts the bytes written since the last call."""
        self._done += count
        self._bar.update(self._task, completed=self._done)
        if not self._console.is_terminal and time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            self._console.print(f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB written", highlight=False)
