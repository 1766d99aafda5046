"""Reports the progress of a long run on standard error: a bar in a terminal, otherwise a line now and then."""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..conformance.report.matrix import duration
from ..conformance.result import Result

EVERY = 15.0  # seconds between two lines
ENOUGH = 5  # cases before the first estimate


class Checking:
    """The progress of a run of ports. Use as a context manager; `begin` and `advance` are callbacks for `runner.run`."""

    def __init__(self, ports: Sequence[str], cases: int, console: Console | None = None) -> None:
        """cases: the most that each port may be asked, until the port says how many it covers."""
        self._console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._ports, self._expected, self._total, self._done = ports, cases, len(ports) * cases, 0
        self._task = self._bar.add_task("checking", total=self._total)
        self._started = self._said = self._first = time.monotonic()

    def __enter__(self) -> "Checking":
        self.say(f"starting {', '.join(self._ports)}: {self._total} comparisons at most ...")
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line."""
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, port: str, modes: Counter[str]) -> None:
        """Announces what a port that has started is asked, and what takes long before it does."""
        for mode, count in modes.items():
            self.say(f"compiling {port}: {count} cases, each compiled ..." if mode == "compiled" else f"running {port}: {count} cases ...")
        self._expect(sum(modes.values()))

    def advance(self, result: Result) -> None:
        """Counts a result of a case that the port was asked."""
        if not result.component:  # the port did not start
            self._expect(0)
        elif result.seconds:
            self._done += 1
            self._first = self._first if self._done > 1 else time.monotonic()  # after one-time work, such as an import
            self._bar.update(self._task, completed=self._done)
            if not self._console.is_terminal and time.monotonic() - self._said > EVERY:
                self._said = time.monotonic()
                self.say(self._so_far())

    def _expect(self, cases: int) -> None:
        """Sets the number of cases that one of the ports will be asked."""
        self._total += cases - self._expected
        self._bar.update(self._task, total=self._total)

    def _so_far(self) -> str:
        seconds = time.monotonic() - self._started
        each = (time.monotonic() - self._first) / max(1, self._done - 1)
        rest = each * (self._total - self._done)
        text = f"{self._done} of {self._total} cases after {duration(seconds)}"
        return text + (f", about {duration(rest)} left" if self._done >= ENOUGH and rest > 0 else "")


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
