"""Plays several processes of a run with threads of this one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from reference_numpy.sharding import Group


class Threads(Group):
    """One of the threads that `together` starts."""

    def __init__(self, rank: int, flags: list[bool], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._flags, self._barrier = rank, len(flags), flags, barrier

    def any(self, flag: bool) -> bool:
        self._flags[self.rank] = flag
        self._barrier.wait()
        found = any(self._flags)
        self._barrier.wait()  # no thread sets the next flag before all have looked
        return found

    def barrier(self) -> None:
        self._barrier.wait()


def in_threads(count: int, action: Callable[[Group], Any]) -> list[Any]:
    """Returns the action's result, or the exception it raises, in each of `count` threads."""
    flags, barrier = [False] * count, threading.Barrier(count, timeout=20)

    def run(rank: int) -> Any:
        try:
            return action(Threads(rank, flags, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
