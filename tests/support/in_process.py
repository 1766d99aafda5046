"""Runs a port in the test process, so that its framework is imported once. Only for ports that neither crash nor hang."""

import copy
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rosettaformer.common.processes import Answer
from rosettaformer.judge.case import Case
from rosettaformer.judge.ports.messages import plain
from rosettaformer.judge.ports.port import Port
from rosettaformer.judge.ports.port_server import SideEffects, reply
from rosettaformer.judge.ports.process import Worker


class InProcess(Worker):
    """Answers like the port's process. Each instance reloads the port; arguments other than its name are those of a process."""

    def __init__(self, port: str, *_: Any, **__: Any) -> None:
        self.port, self.left, before = port, 0, [*sys.path]
        try:
            self._port, self._effects = Port(port), SideEffects()
        finally:
            sys.path[:] = before
            if port.endswith(".py"):  # another file of this name may be loaded
                sys.modules.pop(Path(port).stem, None)
        self.greeting = "ready", self._port.describe()

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        return (self.ask(case, limit) for case in cases)

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        return reply(self._port, self._effects, method, *copy.deepcopy(plain(arguments, bool(self.greeting[1].get("whole")))))

    def close(self) -> None:
        """Does nothing: no process is running."""
