"""Cases on a port in this process, which loads its framework once for all tests; or in one of its own, as users run them."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import expectations
from backends import Backend

from rosettaformer.conformance import runner
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.ports import messages, port_server
from rosettaformer.conformance.ports.port import Port
from rosettaformer.conformance.ports.side_effects import SideEffects
from rosettaformer.conformance.status import Kind

__all__ = ["conform"]


class Here(runner.Worker):
    """What `server` does, without a process."""

    def __init__(self, port: str, *_: Any) -> None:
        self.port, self.left, self._port, self._effects = port, 0, Port(port), SideEffects()
        self.greeting = Kind.READY, self._port.describe()

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Any]:
        return (self.ask(case, limit) for case in cases)

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Any:
        return port_server.reply(self._port, self._effects, method, *messages.plain(arguments))

    def close(self) -> None:
        pass


def conform(cases: Sequence[Case], port: str, dtypes: Sequence[str], here: bool = True, **options: Any) -> int:
    """Asserts that the port passes them all, and returns how many; here: in this process."""
    Backend(port)  # skips the test where the framework is not installed
    with mock.patch.object(runner, "open_worker", Here) if here else contextlib.nullcontext():
        results = runner.run(cases, [port], dtypes, store=expectations.store(), **options)
    assert [result for result in results if result.status not in ("pass", "empty")] == []
    assert len(results) == sum(dtype in case.dtypes for case in cases for dtype in dtypes)
    return len(results)
