"""The process of a port, from the judge's side."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from .case import Case
from .worker import Answer, receive, send

__all__ = ["RESTARTS", "Process", "Worker", "ended", "limited_threads"]

RESTARTS = 3
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class Worker(Protocol):
    """Whatever answers the judge's questions for a port.

    greeting: ("ready", what the port says of itself), ("missing", how to install it), or ("error", why there is no port).
    """

    port: str
    greeting: Answer

    def ask(self, case: Case, limit: float) -> Answer:
        """The kind of the port's answer to the case, and the answer, within so many seconds."""

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        """The answers to many cases, in their order; a port that ends its process too often is asked no more."""

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        """What a method of `Port` answers, as `ask`."""

    def close(self) -> None:
        """Ends whatever is still running."""


class Process:
    """A worker that is a process which has loaded the port.

    A question that ends the process is answered with ("crash", how) or ("hang", how); the next one is put to a new process.
    """

    def __init__(self, port: str, threads: int, start_limit: float = 120.0) -> None:
        self.port, self._threads, self._start_limit = port, threads, start_limit
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.greeting = self._start()

    def _start(self) -> Answer:
        self._log.seek(0)
        self._log.truncate()
        environment = limited_threads(self._threads) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", self.port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        return self._receive(self._start_limit)

    def ask(self, case: Case, limit: float) -> Answer:
        return self.call("answer", case, limit=limit)

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        deaths = 0
        for case in cases:
            if deaths > RESTARTS:
                yield "skipped", f"the port's process had ended {deaths} times"
                continue
            kind, answer = self.ask(case, limit)
            deaths += kind in ("crash", "hang")
            yield kind, answer

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        if self._process.poll() is not None:
            self._end()
            self._start()
        try:
            send(self._process.stdin, (method, *arguments))  # type: ignore[arg-type]
        except OSError:
            return self._dead()
        return self._receive(limit)

    def _receive(self, limit: float) -> Answer:
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._process.kill()

        timer = threading.Timer(limit, expire)
        timer.start()
        try:
            return receive(self._process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError):
            dead = self._dead()
            return ("hang", f"no answer within {limit:g} s") if expired.is_set() else dead
        finally:
            timer.cancel()

    def _dead(self) -> Answer:
        code = self._process.wait()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        return "crash", f"the port's process ended with {ended(code, self._log.read())}"

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        self._end()
        self._log.close()


def limited_threads(threads: int) -> dict[str, str]:
    """The environment in which frameworks compute with so many threads."""
    return os.environ | dict.fromkeys(THREADS, str(threads))


def ended(code: int, log: bytes) -> str:
    """How a process ended, in words, with the last line of what it wrote on standard error."""
    lines = log.decode(errors="replace").strip().splitlines()
    return (f"signal {-code}" if code < 0 else f"exit code {code}") + (f": {lines[-1]}" if lines else "")
