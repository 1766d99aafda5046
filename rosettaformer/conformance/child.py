"""A Python process that answers questions, and whose end is an answer too."""

import os
import subprocess
import sys
import tempfile
import threading
from typing import Any

from .worker import Answer, receive, send

__all__ = ["Child", "cores", "ended", "limited_threads"]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class Child:
    """`python -m MODULE ARGUMENT`, which takes tuples on its standard input and gives pairs (kind, answer) on its standard output.

    who: what messages call it, such as "the port".
    """

    def __init__(self, module: str, argument: str, threads: int, who: str) -> None:
        self._who = who
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=limited_threads(threads) | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ask(self, *question: Any) -> None:
        """Puts a question and does not wait for the answer. Raises OSError where the process has ended."""
        send(self._process.stdin, question)  # type: ignore[arg-type]

    def answer(self, limit: float) -> Answer:
        """The answer to the oldest question, or to the start, that has none yet, within so many seconds; ("crash" or "hang", how) where
        the process ends instead."""
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._process.kill()

        timer = threading.Timer(limit, expire)
        timer.start()
        try:
            return receive(self._process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError):
            end = self._end()
            return ("hang", f"no answer within {limit:g} s") if expired.is_set() else ("crash", end)
        finally:
            timer.cancel()

    def _end(self) -> str:
        code = self._process.wait()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        return f"{self._who}'s process ended with {ended(code, self._log.read())}"

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limited_threads(threads: int) -> dict[str, str]:
    """The environment in which frameworks compute with so many threads."""
    return os.environ | dict.fromkeys(THREADS, str(threads))


def ended(code: int, log: bytes) -> str:
    """How a process ended, in words, with the last line of what it wrote on standard error."""
    lines = log.decode(errors="replace").strip().splitlines()
    return (f"signal {-code}" if code < 0 else f"exit code {code}") + (f": {lines[-1]}" if lines else "")
