"""Runs a port's process, from the judge's side."""

import abc
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reference_numpy.sharding import Mesh

from ...common.backends import PORTS
from ...common.processes import Answer, Child
from ..case import Case
from ..status import Kind
from . import messages
from .children import Children

RESTARTS = 3
CACHE = "JAX_COMPILATION_CACHE_DIR"
DEVICES = "--xla_force_host_platform_device_count"
# XLA rewrites and fuses a program as usual, but LLVM does not optimise its machine code: small programs compile in a fifth of the time.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


class Worker(abc.ABC):
    """Answers the judge's questions for a port.

    greeting: ("ready", what the port says about itself), ("missing", why its framework cannot be used and how to install it), or ("not
    started", why there is no port). left: how many of its processes outlived it and were ended, once it is closed.
    """

    port: str
    greeting: Answer
    left: int

    def ask(self, case: Case, limit: float) -> Answer:
        """Returns the kind of the port's answer to the case, and the answer, within at most `limit` seconds."""
        return self.call("answer", case, limit=limit)

    @abc.abstractmethod
    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        """Yields the answers to many cases, in their order; a port that ends its process too often is not asked again."""

    @abc.abstractmethod
    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        """Returns what a method of `Port` answers, like `ask`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends whatever is still running."""


class Process(Worker):
    """A worker that runs a process with the port loaded.

    A question that ends the process is answered with ("crash", how) or ("hang", how), and one with an invalid answer with ("error", what
    came); the next question goes to a new process. XLA compiles equal programs once for all of them, in a cache that begins empty and ends
    with the worker, unless the environment names another.
    """

    def __init__(
        self,
        port: str,
        threads: int,
        start_limit: float,
        stopped: threading.Event | None = None,
        quick_compile: bool = False,
        mesh: Mesh | None = None,
    ) -> None:
        """quick_compile: our JAX port is compiled with `QUICK_XLA`, if this XLA knows it. mesh: what the cases are on; a port that says so
        has a process for each device, any other one whose XLA has as many devices on a CPU.
        """
        self.port, self._threads, self._start_limit, self._stopped, self._mesh = port, threads, start_limit, stopped, mesh
        self._by_processes = port == "torch"
        self.left = 0
        self._cache = tempfile.TemporaryDirectory(prefix="rosettaformer-", ignore_cleanup_errors=True)
        self._environment = {} if CACHE in os.environ else {CACHE: self._cache.name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        self._quick = quick_compile and port == "jax"
        self.greeting = self._start()

    def _start(self) -> Answer:
        self._child: Child | Children = (
            Children(self._spawn, self._mesh.devices, self._stopped, self._by_processes)
            if self._mesh
            else self._spawn(0, {}, self._stopped)
        )
        kind, answer = self._answer(messages.START, (), self._start_limit)
        if kind == Kind.CRASH and self._quick:  # XLA ends a process with flags that it does not know
            self._quick = False
            return self._start()
        if kind in (Kind.CRASH, Kind.HANG) and self.port in PORTS:  # our own file cannot be what ended the process
            return Kind.MISSING, f"{PORTS[self.port][1]} cannot be imported: {answer}"
        self._by_processes = isinstance(self._child, Children) and bool(self._child.by_processes)
        return (kind, answer) if kind in (Kind.READY, Kind.MISSING) else (Kind.NOT_STARTED, answer)

    def _spawn(self, rank: int, environment: Mapping[str, str], stopped: Any) -> Child:
        """Starts a process; those of a port that needs several share its threads."""
        devices = self._mesh.devices if self._mesh else 1
        flags = [QUICK_XLA] * self._quick + [os.environ.get("XLA_FLAGS", "")] + [f"{DEVICES}={devices}"] * bool(self._mesh)
        own = {"XLA_FLAGS": " ".join(flags)} if self._quick or self._mesh else {}
        threads = max(1, self._threads // devices) if rank or self._by_processes else self._threads
        return Child(f"{__package__}.port_server", self.port, threads, "the port", stopped, {**self._environment, **own, **environment})

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        deaths = 0
        for case in cases:
            if deaths > RESTARTS:
                yield Kind.SKIPPED, f"the port's process had ended {deaths} times"
                continue
            answer = self.ask(case, limit)
            deaths += self._child.ended
            yield answer

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        if not self._child.running:
            self.left += self._child.close()
            kind, why = self._start()
            if kind != Kind.READY:
                self.left += self._child.close()
                return Kind.CRASH, f"the port's process did not start again: {why}"
        self._child.ask(method, *messages.plain(arguments, self._has_weights), limit=limit)
        return self._answer(method, arguments, limit)

    @property
    def _has_weights(self) -> bool:
        """Whether the port has the parameters of its cases, from their folder or its file."""
        about = self.greeting[1]
        return bool(about.get("whole") or about.get("artefact"))

    @property
    def apart(self) -> Sequence[Any]:
        """What each process of a mesh gave to the last question, if they disagree; empty if not."""
        return [answer for _, answer in self._child.apart] if isinstance(self._child, Children) else ()

    def _answer(self, method: str, arguments: tuple[Any, ...], limit: float) -> Answer:
        """Returns the next answer, which must fit the question."""
        answer = self._child.answer(limit)
        why = messages.problem(method, arguments, answer)
        return self._child.refuse(why) if why else answer

    def close(self) -> None:
        self.left += self._child.close()
        self._cache.cleanup()
