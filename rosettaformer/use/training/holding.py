"""Holds a run's folder and signals while `train` runs."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Self

from filelock import FileLock, Timeout

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def alone(folder: Path) -> contextlib.AbstractContextManager[object]:
    """Locks a run against a second call. The system releases the lock when the process ends."""
    try:
        return FileLock(folder / "lock", blocking=False).acquire()
    except Timeout:
        raise ValueError(f"another process trains the run in {folder}; wait for it or stop it") from None


class Interruption(contextlib.ExitStack):
    """While entered, the first Ctrl-C or SIGTERM requests a stop; the second ends the process."""

    asked = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            for number in _SIGNALS:
                self.callback(signal.signal, number, signal.signal(number, self._ask))
        return self

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Delays signals, also for a backend's compilers, which would leave partial files."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.close()
