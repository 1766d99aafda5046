"""What the user's code raises, in words; and that it takes too long."""

import contextlib
import re
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from ..processes import innermost, words

__all__ = ["FAILURES", "TooLong", "failure", "limited"]

FAILURES = (Exception, SystemExit)  # what the user's code may raise
LIMIT = 300  # seconds of one step: an import, the building of a module, a call


class TooLong(BaseException):
    """That a step takes too long, which no code that handles errors keeps."""


def failure(error: BaseException) -> str:
    """The error and its message, without the marks by which a terminal shows bold and colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", words(innermost(error)))


@contextlib.contextmanager
def limited(what: str) -> Iterator[None]:
    """Ends a step of the user's code that sleeps or loops: raises TooLong, again and again, after `LIMIT` seconds.

    Not in another thread than the main one, which gets no signals.
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
