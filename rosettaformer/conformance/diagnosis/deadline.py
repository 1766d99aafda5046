"""When a diagnosis has to end: at a limit of its own processor time, or when it is interrupted. What it has found so far is kept."""

import time


class TimeIsUp(Exception):
    """The limit has passed."""


class Deadline:
    """A limit in seconds of this thread's processor time from now; None for no limit.

    The port computes in a process of its own, so neither its start nor its answers count.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._end = None if seconds is None else time.thread_time() + seconds

    def check(self) -> None:
        """Raises TimeIsUp once the limit has passed."""
        if self._end is not None and time.thread_time() > self._end:
            raise TimeIsUp(f"the limit of {self._seconds:g} seconds had passed")
