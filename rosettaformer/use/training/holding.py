"""What a call of `train` holds while it trains: the run's folder, and the signals that ask it to end."""

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
    """Refuses a second call on the same run. The system releases the lock when the process ends, however that happens."""
    try:
        return FileLock(folder / "lock", blocking=False).acquire()
    except Timeout:
        raise ValueError(f"another process trains the run in {folder}") from None


class Interruption(contextlib.ExitStack):
    """While entered, the first Ctrl-C or SIGTERM asks the run to end; the second ends the process as usual."""

    asked = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in _SIGNALS:
                self.callback(signal.signal, number, signal.signal(number, self._ask))
        return self

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Delays the signals within the block, also for a compiler that a backend starts there, which would leave half a file behind."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.close()
