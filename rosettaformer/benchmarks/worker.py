"""The process of one module of rows: it builds, checks and times one row on request, and idles meanwhile.

`python -m rosettaformer.benchmarks.worker MODULE` takes (method, *arguments) and returns pairs (kind, answer), as a port's process does.
MODULE is a module of `peers`.
"""

import ctypes
import dataclasses
import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..backends import PACKAGES, PORTS, how_to_install, unavailable
from ..extras import OTHERS, install
from ..processes import Answer, message, serve_methods, words
from . import problem
from .timed_rows import About, Call, Row
from .workloads import Task

LONG = 0.05  # least seconds of all calls of one round together
LASTING = 2.0  # seconds of a call from which memory and caches no longer matter
MOST = 200  # calls of one round
TRIM_THRESHOLD = -1  # as malloc.h numbers it
SETTLED = 0.1  # seconds for threads to free what a call has left them


class Server:
    """Answers for the rows of one module."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._rows: list[Row] = []
        self.started: dict[int, Call] = {}
        self._lasting: set[int] = set()

    def describe(self, device: str) -> str:
        return self._module.describe(device)

    def rows(self, task: Mapping[str, Any], device: str) -> list[dict[str, Any]]:
        """Returns the description of each row of the task, given by its fields; builds none."""
        self._rows = self._module.rows(problem.make(Task(**task)), device)
        return [{field.name: getattr(row, field.name) for field in dataclasses.fields(About)} for row in self._rows]

    def check(self, index: int) -> tuple[float, Mapping[str, np.ndarray]]:
        """Returns the seconds of the first call, which compiles, and what is compared with the reference."""
        row = self._rows[index]
        call = self.started[index] = row.start()
        seconds, output = _timed(call)
        if row.ceiling:
            return seconds, {}
        return seconds, {"output": row.check()} if row.check else row.read(output)

    def first(self, index: int) -> float:
        """Returns the seconds from nothing to the first answer: builds the model and calls it once."""
        start = time.perf_counter()
        self._rows[index].start()()
        return time.perf_counter() - start

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
        measure = getattr(self._module, "memory", resident)
        try:
            return measure(self.started[index])
        except OSError:
            return None


def resident(call: Call) -> float:
    """Measures the process's resident memory. glibc would keep freed memory, and a call would live on what another left: it is given back
    first.
    """
    system = ctypes.CDLL(None)
    if hasattr(system, "mallopt"):
        system.mallopt(TRIM_THRESHOLD, 0)
        call()  # at its end threads trim their own heaps
        time.sleep(SETTLED)
        system.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    call()
    return max(0.0, (status("VmHWM") - before) / 1024)


def _timed(call: Call) -> tuple[float, Any]:
    start = time.perf_counter()
    output = call()
    return time.perf_counter() - start, output


def status(name: str) -> int:
    """Returns the KiB that the system counts under that name, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def reply(action: Callable[[], Any]) -> Answer:
    try:
        return "answer", action()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in (__package__.partition(".")[0], *(module.partition(".")[0] for module, _, _ in PORTS.values())):
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


if __name__ == "__main__":
    # frameworks that ask the system see so many processors; those that ask the environment, variables
    threads = int(os.environ["OMP_NUM_THREADS"])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "NPROC"), str(threads))
    serve_methods(lambda: Server(importlib.import_module(f"{__package__}.peers.{sys.argv[1]}")), reply)
