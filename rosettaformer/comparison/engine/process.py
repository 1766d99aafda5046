"""Requests to the processes of the sides."""

import json
from collections.abc import Sequence
from typing import Any

from ...common.extras import MissingBackend
from ...common.processes import Answer, Child
from .sides import Side

DOING = {
    "start": "cannot be loaded",
    "open": "cannot be built",
    "prepare": "cannot be called with the inputs",
    "run": "cannot run",
    "load": "cannot load the weights",
    "gradients": "has no gradients",
    "step": "cannot be trained",
}


class Failed(ValueError):
    """A side refused a request, crashed or hung. ended: whether its process has ended."""

    ended = False


class Asked:
    """A process that answers requests, each within `limit` seconds. module, argument: see `Child`."""

    def __init__(self, module: str, argument: str, limit: float, threads: int, who: str) -> None:
        self._limit = limit
        self._child = Child(module, argument, threads, who)
        self._greeting: Answer | None = None

    @property
    def greeting(self) -> Answer:
        """The handshake; waits for the process to start."""
        if self._greeting is None:
            self._greeting = self._child.answer(self._limit)
        return self._greeting

    @property
    def ended(self) -> bool:
        return self._child.ended

    def tell(self, method: str, *arguments: Any) -> Answer:
        """Returns the kind of the answer and the answer, or the handshake of a failed start."""
        if self.greeting[0] != "answer":
            return self.greeting
        self._child.ask(method, *arguments, limit=self._limit)
        return self._child.answer(self._limit)

    def close(self) -> None:
        self._child.close()


class Process(Asked):
    """The process of a side (see `server.Server`); raises Failed or MissingBackend."""

    def __init__(self, side: Side, which: str, limit: float, threads: int) -> None:
        super().__init__(f"{__package__}.server", json.dumps(side.plain()), limit, threads, "the side")
        self.side, self.which = side, which
        self._waiting = "start"

    def start(self) -> dict[str, Any]:
        """Waits for the start and returns the config fields that the port fixes."""
        self._content("start", self.greeting)
        found: dict[str, Any] = self.call("fixed")
        return found

    def ask(self, method: str, *arguments: Any) -> None:
        """Sends a request without waiting for the answer."""
        self._waiting = method
        self._child.ask(method, *arguments, limit=self._limit)

    def answer(self) -> Any:
        return self._content(self._waiting, self._child.answer(self._limit))

    def call(self, method: str, *arguments: Any) -> Any:
        self.ask(method, *arguments)
        return self.answer()

    def _content(self, what: str, given: Answer) -> Any:
        kind, answer = given
        if kind == "answer":
            return answer
        if kind == "missing":
            raise MissingBackend(f"{self.side.text}: {answer}")
        raise self.failed(f"{DOING.get(what, what)}: {answer}")

    def failed(self, why: str) -> Failed:
        """Returns the error for a request that failed."""
        failed = Failed(f"{self.side.text} (the {self.which}) {why}")
        failed.ended = self.ended
        return failed


def every(sides: Sequence[Process], method: str, *arguments: Any) -> list[Any]:
    """Sends one request to all sides, which run in parallel.

    Raises the error of the first that fails.
    """
    for side in sides:
        side.ask(method, *arguments)
    return answers(sides)


def answers(sides: Sequence[Process]) -> list[Any]:
    """Returns the answer of every side. Raises the error of the first that fails."""
    found: list[Any] = []
    failures: list[Exception] = []
    for side in sides:
        try:
            found.append(side.answer())
        except (Failed, MissingBackend) as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return found
