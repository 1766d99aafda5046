"""Puts what the user's code raises into words; and stops it if it takes too long."""

import contextlib
import re
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from ..processes import innermost, words

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
