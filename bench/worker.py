"""The process of one module of rows: builds, checks and times a row on request.

`python -m bench.worker MODULE` reads (method, *arguments) and answers with pairs (kind, answer),
like a port's process. MODULE is a module of `peers`.
"""

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from rosettaformer.common.processes import serve_methods
from rosettaformer.comparison.timing import server
from rosettaformer.comparison.timing.rows import Call

from . import problem
from .workloads import Task


class Server(server.Server):
    """Serves the rows of one module."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__()
        self._module = module

    def describe(self, device: str) -> str:
        return self._module.describe(device)

    def rows(self, task: Mapping[str, Any], device: str) -> list[dict[str, Any]]:
        """Returns the fields of each of the task's rows, without building any."""
        return self._take(self._module.rows(problem.make(Task(**task)), device))

    def _peak_of(self, call: Call) -> float | None:
        """Measures with the framework's own counter if the module has one."""
        return getattr(self._module, "memory", super()._peak_of)(call)


reply = functools.partial(server.reply, ours=(__package__.partition(".")[0], *server.OURS))


if __name__ == "__main__":
    # limits threads for frameworks that count processors and for those that read variables
    threads = int(os.environ["OMP_NUM_THREADS"])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "NPROC"), str(threads))
    serve_methods(lambda: Server(importlib.import_module(f"{__package__}.peers.{sys.argv[1]}")), reply)
