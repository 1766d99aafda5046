"""What a run shows while it goes on: a line for every event, and on a terminal a bar with loss, speed and time left."""

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Report"]

RECENT = 0.95  # weight of the past in the running means


class Report:
    """Prints to standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False)
        columns = TextColumn("step {task.fields[step]}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn()
        self._bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self._task = self._bar.add_task("training", total=1.0, step=0, now="")
        self._loss = self._speed = 0.0
        self._seen = 0
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line of its own."""
        self.console.print(text, soft_wrap=True)

    def step(self, number: int, loss: float, tokens: int, share: float) -> None:
        """After a step. share: of the run that is done, between 0 and 1."""
        now = time.monotonic()
        self._seen += 1
        weight = min(RECENT, 1 - 1 / self._seen)  # the plain mean of the first few
        self._loss += (1 - weight) * (loss - self._loss)
        self._speed += (1 - weight) * (tokens / max(now - self._last, 1e-9) - self._speed)
        self._last = now
        self._bar.update(self._task, completed=share, step=number, now=f"loss {self._loss:.3f}, {self._speed:,.0f} tokens/s, left")

    def scores(self, title: str, values: dict[str, Any]) -> None:
        """The scores of an evaluation."""
        self.say(title + ": " + ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items()))
        self._last = time.monotonic()  # evaluation is not the speed of training
