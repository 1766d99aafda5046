"""Runs a process with deadlines for reading and writing, and ends it with everything it started.

Its session, and a mark in the environment, identify its descendants.
"""

import contextlib
import os
import re
import secrets
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .text import printable

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
TICK = 0.05  # seconds between two checks that the process still runs
TAIL = 4000  # bytes kept of standard error
SETTLED = 0.5  # seconds for descendants to end by themselves
CHUNK = 1 << 16


class Stopped(Exception):
    """Raised if another thread says that nobody is waiting any more."""


class Program:
    """A running command. Keeps the end of its standard error; input and output are optional pipes.

    No read or write blocks longer than requested, whatever the process does and whoever else holds
    its pipes.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        talks: bool = False,
        listens: bool = False,
        stopped: threading.Event | None = None,
    ) -> None:
        """talks: opens its standard output. listens: opens its standard input. stopped: event that
        makes every wait raise Stopped. Raises OSError if the command cannot be started.
        """
        self._stopped = stopped
        self._mark = secrets.token_hex(8)
        self._tail = bytearray()
        self._said_all = self._closing = False
        self._process = subprocess.Popen(
            arguments,
            bufsize=0,
            stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**environment, MARK: self._mark},
            start_new_session=True,
        )
        for stream in filter(None, (self._process.stdin, self._process.stdout, self._process.stderr)):
            os.set_blocking(stream.fileno(), False)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code, negative if a signal ended it; None while it runs."""
        return self._process.poll()

    def write(self, data: bytes, deadline: float) -> None:
        """Writes all data. Raises EOFError if nobody reads it, and TimeoutError at the deadline."""
        left = memoryview(data)
        while left:
            try:
                written = self._process.stdin.write(left)  # type: ignore[union-attr]
            except (BrokenPipeError, ValueError):  # closed by either side
                raise EOFError from None
            if written:
                left = left[written:]
            else:
                self._await(self._process.stdin, select.POLLOUT, deadline)

    def read(self, size: int, deadline: float) -> bytearray:
        """Reads exactly `size` bytes. Raises EOFError at the end, TimeoutError at the deadline."""
        data = bytearray(size)
        left = memoryview(data)
        while left:
            count = self._process.stdout.readinto(left)  # type: ignore[union-attr]
            if count == 0:
                raise EOFError
            if count:
                left = left[count:]
            else:
                self._await(self._process.stdout, select.POLLIN, deadline)
        return data

    def output(self, most: int, deadline: float) -> bytes:
        """Reads the output to its end or `most` bytes; raises TimeoutError at the deadline."""
        data = b""
        while len(data) < most and (said := self._process.stdout.read(CHUNK)) != b"":  # type: ignore[union-attr]
            data += said or b""
            try:
                if said is None:
                    self._await(self._process.stdout, select.POLLIN, deadline)
            except EOFError:
                break
        return data

    def wait(self, deadline: float) -> None:
        """Waits until the process ends; raises TimeoutError at the deadline."""
        with contextlib.suppress(EOFError):
            while True:
                self._await(None, 0, deadline)

    def _await(self, stream: object, event: int, deadline: float) -> None:
        """Waits for the stream. Raises EOFError if it is not ready and the process has ended."""
        while True:
            ended = not self.running  # checked first, so that everything it wrote is in the pipe
            left = deadline - time.monotonic()
            poller = select.poll()
            if not self._said_all:
                poller.register(self._process.stderr, select.POLLIN)  # type: ignore[arg-type]
            if stream is not None:
                poller.register(stream, event)  # type: ignore[arg-type]
            ready = [number for number, _ in poller.poll(1000 * max(0.0, min(left, 0 if ended else TICK)))]
            if not self._said_all and self._process.stderr.fileno() in ready:  # type: ignore[union-attr]
                self._listen()
            if stream is not None and stream.fileno() in ready:  # type: ignore[attr-defined]
                return
            if ended:
                raise EOFError
            if self._stopped and self._stopped.is_set() and not self._closing:
                raise Stopped
            if left <= 0:
                raise TimeoutError

    def _listen(self) -> bool:
        """Reads available standard error, and keeps its end."""
        said = None if self._said_all else self._process.stderr.read(CHUNK)  # type: ignore[union-attr]
        self._said_all = self._said_all or said == b""
        self._tail += said or b""
        del self._tail[:-TAIL]
        return bool(said)

    def close(self, grace: float = 0.0) -> int:
        """Closes standard input, waits `grace` seconds, then kills the process and its descendants.

        Returns the number of descendants that outlived it; 0 if the process had to be killed.
        """
        self._closing = True
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            self.wait(time.monotonic() + grace)
        ended = not self.running
        others = outliving(self._process.pid, self._mark, SETTLED) if ended else []
        end(self._process.pid, self._mark)
        self._process.wait()
        for _ in range(CHUNK):  # reads the rest of the pipe, unless other processes keep writing
            if not self._listen():
                break
        for stream in filter(None, (self._process.stdout, self._process.stderr)):
            stream.close()
        self._said_all = True
        return len(others)

    @property
    def end(self) -> str:
        """How the process ended, with the last line of its standard error."""
        code = self._process.returncode
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return (f"signal {-code}" if code < 0 else f"exit code {code}") + (f": {printable(lines[-1])}" if lines else "")


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_share(sharers: int = 1) -> int:
    """Returns the threads for each of several parallel processes, at most OMP_NUM_THREADS."""
    own = re.match(r"[1-9]\d*", os.environ.get(THREADS[0], ""))
    share = max(1, cores() // max(1, sharers))
    return min(share, int(own[0])) if own else share


def limited_threads(threads: int) -> dict[str, str]:
    """Returns an environment that limits frameworks to `threads` threads."""
    return os.environ | dict.fromkeys(THREADS, str(threads))


MARK = "ROSETTAFORMER_PROCESS"  # environment variable that all descendants of a program inherit
PAUSE = 0.02  # seconds between two checks
ROUNDS = 50  # rounds of killing, since processes may start others in the meantime


def outliving(session: int, mark: str, seconds: float) -> list[int]:
    """Returns the ids of processes that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    while (found := _running(session, mark)) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return found


def end(session: int, mark: str) -> None:
    """Kills the process group and, on Linux, processes that have left it."""
    for _ in range(ROUNDS):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        others = _running(session, mark)
        for process in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not others:
            return
        time.sleep(PAUSE)


def _running(session: int, mark: str) -> list[int]:
    """Returns the processes in the session or with the mark, except the first one and zombies."""
    found = []
    sought = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        process = int(folder.name)
        with contextlib.suppress(OSError):
            state, _, _, own = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            if process != session and state not in (b"Z", b"X") and (int(own) == session or sought in (folder / "environ").read_bytes()):
                found.append(process)
    return found
