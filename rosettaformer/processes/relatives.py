"""The processes that a process has started, found by its session and by a mark in their environment."""

import contextlib
import os
import signal
import time
from pathlib import Path

__all__ = ["MARK", "end", "outliving"]

MARK = "ROSETTAFORMER_PROCESS"  # the environment variable whose value every process that a program starts inherits
PAUSE = 0.02  # seconds between two looks
ROUNDS = 50  # of ending what starts others meanwhile


def outliving(session: int, mark: str, seconds: float) -> list[int]:
    """The ids of those that still run after so many seconds; what is about to end is given that time."""
    deadline = time.monotonic() + seconds
    while (found := _running(session, mark)) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return found


def end(session: int, mark: str) -> None:
    """Kills the whole process group, and where the system shows its processes (Linux), those that have left it."""
    for _ in range(ROUNDS):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        others = _running(session, mark)
        for process in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not others:
            return
        time.sleep(PAUSE)


def _running(session: int, mark: str) -> list[int]:
    """The processes of the session and those with the mark, without the first and without zombies."""
    found = []
    sought = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        process = int(folder.name)
        with contextlib.suppress(OSError):
            state, _, _, own = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            if process != session and state not in (b"Z", b"X") and (int(own) == session or sought in (folder / "environ").read_bytes()):
                found.append(process)
    return found
