"""A session with a port: starts its process, decides what to ask, and ends the process."""

import threading
from functools import cached_property
from typing import Any

from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import known

from ...common.extras import MissingBackend
from ..case import Case
from ..status import Kind, Status
from ..suite.asked import Asked, Question, Suite, asked
from .command import PREFIX, Command
from .process import Process, Worker


class Session:
    """A port's process, and the questions of a suite that it can answer. Must be closed.

    worker: answers questions; after a crash it starts a new process. kind, about: the handshake. If
    the port is ready, `about` is its description of itself.
    """

    def __init__(
        self, port: str, suite: Suite, threads: int, start_limit: float = 120.0, stopped: threading.Event | None = None,
        quick_compile: bool = False, mesh: Mesh | None = None,
    ) -> None:  # fmt: skip
        """The other arguments are those of `open_worker`."""
        self.port, self.mesh, self._suite = port, mesh, suite
        self.worker = open_worker(port, threads, start_limit, stopped, quick_compile, mesh)
        self.kind: str
        self.about: Any
        self.kind, self.about = self.worker.greeting

    @property
    def ready(self) -> bool:
        """Whether the port has started."""
        return self.kind == Kind.READY

    def require(self, mode: str = "") -> None:
        """Raises MissingBackend without the framework, ValueError if the port or mode is unusable."""
        if self.kind == Kind.MISSING:
            raise MissingBackend(self.about)
        if not self.ready:
            where = f" on the mesh {self.mesh}" if self.mesh else ""
            raise ValueError(f"the port {self.port} did not start{where}: {self.about}")
        known("the mode of this port", [mode] if mode else [], self.about["modes"])

    @cached_property
    def asked(self) -> Asked:
        """The questions for the port. Raises ValueError as `suite.asked.asked` does."""
        return asked(self._suite, self.about, self.mesh)

    @cached_property
    def _cases(self) -> dict[str, Case]:
        return {case.id: case for case in (self.asked.cases if self.ready else self._suite.cases)}

    def question(self, case_id: str, dtype: str, mode: str = "") -> Question:
        """Returns the question of a case, with the reason if the port did not start."""
        case = self._cases[case_id]
        if not self.ready:
            return Question(case, dtype, "cpu", mode, Status(self.kind), self.about)
        return self.asked.question(case, dtype, mode=mode)

    def close(self) -> None:
        """Ends the port's process."""
        self.worker.close()


def open_worker(
    port: str,
    threads: int,
    start_limit: float = 120.0,
    stopped: threading.Event | None = None,
    quick_compile: bool = False,
    mesh: Mesh | None = None,
) -> Worker:
    """Starts the port's process, or prepares the command that its name holds.

    start_limit: seconds in which it must start. stopped: once set, waiting for the port raises
    `Stopped`. quick_compile, mesh: see `Process`.
    """
    if port.startswith(PREFIX):
        return Command(port, threads, start_limit, stopped)
    return Process(port, threads, start_limit, stopped, quick_compile, mesh)
