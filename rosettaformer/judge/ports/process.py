"""The judge's side of a port's process."""

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
# XLA rewrites and fuses as usual; LLVM does not optimize, so small programs compile five times faster.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


class Worker(abc.ABC):
    """Asks a port for the outputs of cases.

    greeting: the handshake: ("ready", the port's description of itself), ("missing", why its
    framework cannot be imported and how to install it), or ("not started", why the port could not
    be loaded). left: after `close`, the number of processes that outlived the port and were ended.
    """

    port: str
    greeting: Answer
    left: int

    def ask(self, case: Case, limit: float) -> Answer:
        """Returns the kind and content of the port's answer, after at most `limit` seconds."""
        return self.call("answer", case, limit=limit)

    @abc.abstractmethod
    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        """Yields the answers to many cases, in order. Gives up if the process dies too often."""

    @abc.abstractmethod
    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        """Returns the answer of a method of `Port`, like `ask`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends all processes."""


class Process(Worker):
    """A worker whose process has the port loaded.

    A question whose process dies is answered with ("crash", how) or ("hang", how), and an invalid
    answer becomes ("error", why); the next question goes to a new process. All processes share a
    compilation cache of XLA, which starts empty and is removed with the worker, unless the
    environment sets one.
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
        """quick_compile: compile our JAX port with `QUICK_XLA`, if this version of XLA knows the
        flags. mesh: the mesh of the cases. A port that declares it gets one process per device; any
        other port gets one process whose XLA has that many CPU devices."""
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
        if kind == Kind.CRASH and self._quick:  # XLA exits on unknown flags
            self._quick = False
            return self._start()
        if kind in (Kind.CRASH, Kind.HANG) and self.port in PORTS:  # our own port files do not crash
            return Kind.MISSING, f"{PORTS[self.port][1]} cannot be imported: {answer}"
        self._by_processes = isinstance(self._child, Children) and bool(self._child.by_processes)
        return (kind, answer) if kind in (Kind.READY, Kind.MISSING) else (Kind.NOT_STARTED, answer)

    def _spawn(self, rank: int, environment: Mapping[str, str], stopped: Any) -> Child:
        """Starts a process. The processes of one port share its threads."""
        devices = self._mesh.devices if self._mesh else 1
        flags = [QUICK_XLA] * self._quick + [os.environ.get("XLA_FLAGS", "")] + [f"{DEVICES}={devices}"] * bool(self._mesh)
        own = {"XLA_FLAGS": " ".join(flags)} if self._quick or self._mesh else {}
        threads = max(1, self._threads // devices) if rank or self._by_processes else self._threads
        return Child(f"{__package__}.port_server", self.port, threads, "the port", stopped, {**self._environment, **own, **environment})

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        deaths = 0
        for case in cases:
            if deaths > RESTARTS:
                yield Kind.SKIPPED, f"not run, because the port's process had died {deaths} times"
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
                return Kind.CRASH, f"the port's process could not be restarted: {why}"
        self._child.ask(method, *messages.plain(arguments, self._has_weights), limit=limit)
        return self._answer(method, arguments, limit)

    @property
    def _has_weights(self) -> bool:
        """Whether the port has the cases' parameters, from its checkpoint or its own file."""
        about = self.greeting[1]
        return bool(about.get("whole") or about.get("artefact"))

    @property
    def apart(self) -> Sequence[Any]:
        """The last answers of a mesh's processes if they disagree; otherwise empty."""
        return [answer for _, answer in self._child.apart] if isinstance(self._child, Children) else ()

    def _answer(self, method: str, arguments: tuple[Any, ...], limit: float) -> Answer:
        """Returns the next answer, validated against the question."""
        answer = self._child.answer(limit)
        why = messages.problem(method, arguments, answer)
        return self._child.refuse(why) if why else answer

    def close(self) -> None:
        self.left += self._child.close()
        self._cache.cleanup()
