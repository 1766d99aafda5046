"""Ending a run between two steps."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interruption"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While it is entered, the first Ctrl-C or SIGTERM asks the run to end; the second ends the process as it would without this."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._restore()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within the block the signals wait: also for a compiler that a backend starts there, which would leave half a file behind."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
