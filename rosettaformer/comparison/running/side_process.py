"""Asks the process of one side, and times both."""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from ...common.extras import MissingBackend
from ...common.processes import Child
from .sides import Side

DOING = {
    "start": "cannot be loaded",
    "open": "cannot be built",
    "prepare": "cannot be called with the inputs",
    "run": "cannot be run",
    "load": "cannot take the weights",
    "gradients": "gives no gradients",
    "step": "cannot be trained",
}


class Failed(ValueError):
    """A side gives no answer: it refuses, crashes or hangs. The message says which side and why. ended: its process has ended."""

    ended = False


class Process:
    """A side that answers questions, each within `limit` seconds; raises Failed, or MissingBackend, if it does not."""

    def __init__(self, side: Side, which: str, limit: float, threads: int) -> None:
        self.side, self.which, self._limit = side, which, limit
        self._child = Child(f"{__package__}.comparison_server", json.dumps(side.plain()), threads, "the side")
        self._waiting = "start"

    def start(self) -> dict[str, Any]:
        """The config fields that its port fixes, once the side has begun."""
        self._answer("start")
        found: dict[str, Any] = self.call("fixed")
        return found

    def ask(self, method: str, *arguments: Any) -> None:
        """Asks, and does not wait for the answer."""
        self._waiting = method
        self._child.ask(method, *arguments, limit=self._limit)

    def answer(self) -> Any:
        return self._answer(self._waiting)

    def call(self, method: str, *arguments: Any) -> Any:
        self.ask(method, *arguments)
        return self.answer()

    def _answer(self, what: str) -> Any:
        kind, answer = self._child.answer(self._limit)
        if kind == "answer":
            return answer
        if kind == "missing":
            raise MissingBackend(f"{self.side.text}: {answer}")
        said = {"crash": "crashes: ", "hang": "does not answer: "}.get(kind, "")
        doing = DOING.get(what, what)
        failed = Failed(f"the {self.which} side, {self.side.text}, {doing}: {said}{answer}")
        failed.ended = self._child.ended
        raise failed

    def close(self) -> None:
        self._child.close()


def both(sides: Sequence[Process], method: str, *arguments: Any) -> list[Any]:
    """Asks both the same question, which they answer at the same time. Raises the error of the first that gives no answer."""
    for side in sides:
        side.ask(method, *arguments)
    return answers(sides)


def answers(sides: Sequence[Process]) -> list[Any]:
    """Returns the answers to the question that each was asked. Raises the error of the first that gives none."""
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


MODES = ("eager", "compiled")


def timed(sides: Sequence[Process], modes: Sequence[str], rounds: int, step: bool) -> list[dict[str, Any]]:
    """Times both sides in interleaved rounds. Returns a row for forward and for step in each mode: the
    median, the first call and the peak memory of both sides.
    """
    rows = []
    for what in ("forward", *["step"] * step):
        for mode in modes:
            compiled = mode == "compiled"
            row: dict[str, Any] = {"what": what, "mode": mode, "sides": [{}, {}]}
            rows.append(row)
            ready = []
            for which, side in enumerate(sides):
                try:
                    first, calls = side.call("warm", what, compiled)
                except Failed as error:
                    if error.ended:
                        raise
                    row["sides"][which] = {"failed": str(error)}
                    continue
                row["sides"][which] = {"first_ms": 1e3 * first}
                ready.append((which, side, calls))
            samples: dict[int, list[float]] = {which: [] for which, *_ in ready}
            for _ in range(rounds):
                for which, side, calls in ready:
                    samples[which].append(1e3 * side.call("time", what, compiled, calls))
            for which, side, _ in ready:
                own = samples[which]
                row["sides"][which] |= {"median_ms": statistics.median(own), "min_ms": min(own)}
                if not compiled:
                    row["sides"][which]["peak_mib"] = side.call("memory", what, compiled)
    return rows
