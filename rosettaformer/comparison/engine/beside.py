"""Runs ports, each in its own process, together with the reference, which measures rounding."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ...common.processes import Answer, thread_share
from ...judge.case import Case
from ...judge.expectation.tolerance import ORDERS, in_orders
from ...judge.ports.process import Worker
from ...judge.ports.session import open_worker
from ...judge.status import Kind


@contextlib.contextmanager
def opened(ports: Mapping[str, str], limit: float) -> Iterator[dict[str, Worker]]:
    """Starts a process per port and ends them after the block; handshakes report failures."""
    threads = thread_share(len(ports))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(max(1, len(ports))) as pool:
        started = pool.map(lambda port: open_worker(port, threads, limit), ports.values())
        yield {name: stack.enter_context(contextlib.closing(worker)) for name, worker in zip(ports, started, strict=True)}


@dataclass(frozen=True)
class Beside:
    """Runs the same cases on ports and the reference.

    limit: seconds for one output. in_turn: run one port at a time, to save memory. problems: errors
    by port; cases that a port does not cover are no errors.
    """

    ports: Mapping[str, Worker]
    limit: float
    in_turn: bool = False
    problems: dict[str, list[str]] = field(default_factory=dict)

    def measured(
        self, what: str, case: Case, reference: Callable[[Case], Any], question: Callable[[Worker], Answer] | None = None
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """Returns the float64 reference, the reference in the case's dtype for each summation
        order, and the outputs of the ports that support the dtype, by name.

        question: called with each port instead of running the case. what: description for errors.
        """
        able = {name: port for name, port in self.ports.items() if case.dtype in port.greeting[1]["dtypes"]}
        with ThreadPoolExecutor(1 if self.in_turn else max(1, len(able))) as pool:
            asked = {name: pool.submit(question or (lambda port: port.ask(case, self.limit)), port) for name, port in able.items()}
            exact, runs = reference(case.at("float64")), in_orders(lambda: reference(case), ORDERS.values())
            answers = {name: one.result() for name, one in asked.items()}
        for name, (kind, answer) in answers.items():
            if kind not in (Kind.OUTPUTS, Kind.NOT_COVERED):
                self.problem(name, f"{what} in {case.dtype}: {kind}, {answer}")
        return exact, runs, {name: answer for name, (kind, answer) in answers.items() if kind == Kind.OUTPUTS}

    def problem(self, name: str, text: str) -> None:
        """Adds an error of a port."""
        self.problems.setdefault(name, []).append(text)
