"""Runs the user's code: puts what it raises into words, stops it if it takes too long, and hides what it prints and what frameworks log."""

import contextlib
import io
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from types import FrameType

from ...common.processes import innermost, words

FAILURES = (Exception, SystemExit)  # what the user's code may raise
LIMIT = 300  # seconds for one step: an import, the building of a module, a call


class TooLong(BaseException):
    """Raised if a step takes too long; no code that handles errors catches it."""


def failure(error: BaseException) -> str:
    """Returns the error and its message, without a terminal's codes for bold and colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", words(innermost(error)))


@contextlib.contextmanager
def limited(what: str) -> Iterator[None]:
    """Ends a step of the user's code that sleeps or loops: raises TooLong, again and again, after `LIMIT` seconds.

    Only in the main thread: no other gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"{what} takes longer than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# of absl, and of TensorFlow before it
_LOGGED = re.compile(rb"WARNING: All log messages before absl::|[IWE]\d{4} \d\d:\d\d:\d+\.\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] ")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops Python's warnings, standard output and the log lines of a framework's libraries while the block runs."""
    with _without_logs(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Holds back what bypasses Python on the descriptor of standard error, and writes what is not a log line when the block has ended."""
    python, descriptor = sys.stderr, 2
    with tempfile.TemporaryFile() as held, open(os.dup(descriptor), "w", buffering=1, encoding="utf-8") as real:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            python.flush()
            sys.stderr = real if python.fileno() == descriptor else python
        os.dup2(held.fileno(), descriptor)
        try:
            yield
        finally:
            os.dup2(real.fileno(), descriptor)
            sys.stderr = python
            held.seek(0)
            for line in held:
                if not _LOGGED.match(line):
                    os.write(descriptor, line)
