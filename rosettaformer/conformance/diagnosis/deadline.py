"""When a diagnosis has to end: at a limit of time, or when it is interrupted. What it has found so far is kept."""

import time

LEAST = 0.1  # seconds, for one more answer


class TimeIsUp(Exception):
    """The limit has passed."""


class Deadline:
    """A limit in seconds from now; None for no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def within(self, seconds: float) -> float:
        """So many seconds, or those that are left."""
        return seconds if self._end is None else max(min(seconds, self._end - time.monotonic()), LEAST)

    def check(self) -> None:
        """Raises TimeIsUp once the limit has passed."""
        if self._end is not None and time.monotonic() > self._end:
            raise TimeIsUp(f"the limit of {self._seconds:g} seconds had passed")
