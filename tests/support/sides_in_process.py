"""Both sides of a comparison in the process of the tests: frameworks are imported once for all of them. Only for sides that neither crash
nor hang.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rosettaformer.common.processes import Answer, Child, wire
from rosettaformer.comparison.engine import process, server

__all__ = ["in_process", "sides_in_process"]


class _InProcess:
    """Answers as `rosettaformer.common.processes.Child` does; questions and answers take the form that they have between processes."""

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
        """Nothing is left running."""


def _sent(message: Any) -> Any:
    """The message as the other process receives it."""
    parts, _ = wire.pack(message)
    stream = io.BytesIO(b"".join(bytes(part) for part in parts))
    return wire.receive(stream.read)[0]


def in_process(but: str = "") -> Any:
    """A context in which no process is started for a side. but: a file's name, without its end, that has one all the same."""

    def child(module: str, argument: str, threads: int, who: str) -> Any:
        own = but and Path(json.loads(argument)["path"]).stem == but
        return (Child if own else _InProcess)(module, argument, threads, who)

    return mock.patch.object(process, "Child", child)


@pytest.fixture
def sides_in_process() -> Any:
    with in_process():
        yield
