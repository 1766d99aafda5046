"""Runs both sides of a comparison in the test process, so that frameworks are imported once. Only for sides that neither crash
nor hang.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from rosettaformer.common.processes import Answer, Child, wire
from rosettaformer.comparison.engine import process, server


class _InProcess:
    """Answers like `rosettaformer.common.processes.Child`; messages take the form they have between processes."""

    ended = False

    def __init__(self, module: str, argument: str, threads: int, who: str) -> None:
        self._side, self._server = json.loads(argument), None
        self._answer = server.reply(self._open)

    def _open(self) -> None:
        before = [*sys.path]
        try:
            self._server = server.Server(self._side)
        finally:
            sys.path[:] = before

    def ask(self, method: str, *arguments: Any, limit: float) -> None:
        before, given = [*sys.path], _sent(arguments)
        try:
            self._answer = server.reply(lambda: getattr(self._server, method)(*given))
        finally:
            sys.path[:] = before

    def answer(self, limit: float) -> Answer:
        return _sent(self._answer)

    def close(self) -> None:
        """Does nothing: no process is running."""


def _sent(message: Any) -> Any:
    """Returns the message as the other process would receive it."""
    parts, _ = wire.pack(message)
    stream = io.BytesIO(b"".join(bytes(part) for part in parts))
    return wire.receive(stream.read)[0]


def in_process(but: str = "") -> Any:
    """A context in which sides run in this process. but: the stem of a file that still gets its own process."""

    def child(module: str, argument: str, threads: int, who: str) -> Any:
        own = but and Path(json.loads(argument)["path"]).stem == but
        return (Child if own else _InProcess)(module, argument, threads, who)

    return mock.patch.object(process, "Child", child)
