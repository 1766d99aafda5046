"""Answers for rows in the process that holds them: it builds, checks and times one row on request, and idles meanwhile."""

import dataclasses
import gc
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ...common.backends import PACKAGES, PORTS, how_to_install, unavailable
from ...common.extras import NAME, OTHERS, install
from ...common.processes import Answer, message, words
from .memory import resident
from .rows import About, Call, Row

LONG = 0.05  # least seconds of all calls of one round together
LASTING = 2.0  # seconds of a call from which memory and caches no longer matter
MOST = 200  # calls of one round
PAUSE = 0.05  # seconds for the threads of the previous row to stop spinning
OURS = (NAME, *(module.partition(".")[0] for module, _, _ in PORTS.values()))  # packages that are never missing


class Server:
    """Answers for rows by their index. A subclass says which: it passes them to `_take`."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self.started: dict[int, Call] = {}
        self._lasting: set[int] = set()

    def _take(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Answers for these rows instead of the earlier ones. Returns the description of each; builds none."""
        self.drop()
        self._rows = [*rows]
        return [{field.name: getattr(row, field.name) for field in dataclasses.fields(About)} for row in rows]

    def drop(self) -> None:
        """Forgets the rows."""
        self._rows, self.started, self._lasting = [], {}, set()
        gc.collect()

    def check(self, index: int) -> tuple[float, Mapping[str, np.ndarray]]:
        """Returns the seconds of the first call, which compiles, and what is compared with the reference."""
        row = self._rows[index]
        call = self.started[index] = row.start()
        seconds, output = _timed(call)
        if row.ceiling:
            return seconds, {}
        return seconds, {"output": row.check()} if row.check else row.read(output)

    def calls(self, index: int) -> int:
        """Warms up, and returns how many calls of the row make a round long enough for the clock."""
        seconds = _timed(self.started[index])[0]
        if seconds < LASTING:
            seconds = min(seconds, _timed(self.started[index])[0])
        else:
            self._lasting.add(index)
        return max(1, min(MOST, round(LONG / seconds)))

    def time(self, index: int, calls: int) -> float:
        """Returns the seconds of a call that follows another one of its row, if the state of memory and caches matters."""
        if index not in self._lasting:
            self.started[index]()
        start = time.perf_counter()
        for _ in range(calls):
            self.started[index]()
        return (time.perf_counter() - start) / calls

    def memory(self, index: int) -> float | None:
        """Returns the MiB at the peak of a warm call, beyond what was held before it; None if neither framework nor system tells.

        Nothing is timed after it.
        """
        if index not in self.started:
            call = self.started[index] = self._rows[index].start()
            call()
            call()
        gc.collect()
        try:
            return self._peak_of(self.started[index])
        except OSError:
            return None

    def _peak_of(self, call: Call) -> float | None:
        """Returns the MiB at the peak of a call; raises OSError, or returns None, where nothing tells."""
        return resident(call)


def _timed(call: Call) -> tuple[float, Any]:
    start = time.perf_counter()
    output = call()
    return time.perf_counter() - start, output


def reply(action: Callable[[], Any], ours: Collection[str] = OURS) -> Answer:
    """Turns a call into an answer. A missing package is ("missing", (package, how to install it)), unless it is one of ours."""
    try:
        return "answer", action()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ours:
            return "error", f"{type(error).__name__}: {error}"
        if package in PACKAGES:
            return "missing", (package, how_to_install(PACKAGES[package]))
        return "missing", (package, OTHERS[package] if package == "keras_hub" else install("bench"))
    except ValueError as error:
        return "refused", message(error)
    except Exception as error:
        if reason := unavailable(error):
            return "missing", ("its framework", reason)
        return "error", words(error).strip().partition("\n")[0]
