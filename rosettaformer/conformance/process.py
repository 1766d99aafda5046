"""The process of a port, from the judge's side."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from .case import Case
from .child import Child
from .worker import Answer

__all__ = ["RESTARTS", "Process", "Worker"]

RESTARTS = 3


class Worker(Protocol):
    """Whatever answers the judge's questions for a port.

    greeting: ("ready", what the port says of itself), ("missing", how to install it), or ("error", why there is no port).
    """

    port: str
    greeting: Answer

    def ask(self, case: Case, limit: float) -> Answer:
        """The kind of the port's answer to the case, and the answer, within so many seconds."""

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        """The answers to many cases, in their order; a port that ends its process too often is asked no more."""

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        """What a method of `Port` answers, as `ask`."""

    def close(self) -> None:
        """Ends whatever is still running."""


class Process:
    """A worker that is a process which has loaded the port.

    A question that ends the process is answered with ("crash", how) or ("hang", how); the next one is put to a new process.
    """

    def __init__(self, port: str, threads: int, start_limit: float = 120.0) -> None:
        self.port, self._threads, self._start_limit = port, threads, start_limit
        self.greeting = self._start()

    def _start(self) -> Answer:
        self._child = Child(f"{__package__}.worker", self.port, self._threads, "the port")
        return self._child.answer(self._start_limit)

    def ask(self, case: Case, limit: float) -> Answer:
        return self.call("answer", case, limit=limit)

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        deaths = 0
        for case in cases:
            if deaths > RESTARTS:
                yield "skipped", f"the port's process had ended {deaths} times"
                continue
            kind, answer = self.ask(case, limit)
            deaths += kind in ("crash", "hang")
            yield kind, answer

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        if not self._child.running:
            self._child.close()
            self._start()
        with contextlib.suppress(OSError):  # the process has ended, which its answer says
            self._child.ask(method, *arguments)
        return self._child.answer(limit)

    def close(self) -> None:
        self._child.close()
