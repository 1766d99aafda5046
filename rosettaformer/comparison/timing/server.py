"""The server of a timing process, which builds, checks and times one row per request."""

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

LONG = 0.05  # minimum seconds of all calls of one round
LASTING = 2.0  # seconds of a call from which the state of caches no longer matters
MOST = 200  # maximum number of calls of one round
PAUSE = 0.05  # seconds for the threads of the previous row to stop spinning
OURS = (NAME, *(module.partition(".")[0] for module, _, _ in PORTS.values()))  # packages that are never reported as missing


class Server:
    """Runs rows by index; a subclass sets them with `_take`."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self.started: dict[int, Call] = {}
        self._lasting: set[int] = set()

    def _take(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Replaces the rows, without building them, and returns their descriptions."""
        self.drop()
        self._rows = [*rows]
        return [{field.name: getattr(row, field.name) for field in dataclasses.fields(About)} for row in rows]

    def drop(self) -> None:
        """Drops the rows and frees their memory."""
        self._rows, self.started, self._lasting = [], {}, set()
        gc.collect()

    def check(self, index: int) -> tuple[float, Mapping[str, np.ndarray]]:
        """Returns the seconds of the first call, with compilation, and the arrays to compare."""
        row = self._rows[index]
        call = self.started[index] = row.start()
        seconds, output = _timed(call)
        if row.ceiling:
            return seconds, {}
        return seconds, {"output": row.check()} if row.check else row.read(output)

    def calls(self, index: int) -> int:
        """Warms up and returns the number of calls that make a round long enough to time."""
        seconds = _timed(self.started[index])[0]
        if seconds < LASTING:
            seconds = min(seconds, _timed(self.started[index])[0])
        else:
            self._lasting.add(index)
        return max(1, min(MOST, round(LONG / seconds)))

    def time(self, index: int, calls: int) -> float:
        """Returns the seconds per call, with warm caches for short calls."""
        if index not in self._lasting:
            self.started[index]()
        start = time.perf_counter()
        for _ in range(calls):
            self.started[index]()
        return (time.perf_counter() - start) / calls

    def memory(self, index: int) -> float | None:
        """Returns the peak MiB of a warm call above the memory before it; None if unknown.

        Call it after all timing.
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
        """Returns the peak MiB of a call. Returns None or raises OSError if unknown."""
        return resident(call)


def _timed(call: Call) -> tuple[float, Any]:
    start = time.perf_counter()
    output = call()
    return time.perf_counter() - start, output


def reply(action: Callable[[], Any], ours: Collection[str] = OURS) -> Answer:
    """Converts a call to an answer: a missing package is ("missing", (package, how to install it)),
    except ours.
    """
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
