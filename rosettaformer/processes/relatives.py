"""Finds the processes that a process has started, by its session and by a mark in their environment."""

import contextlib
import os
import signal
import time
from pathlib import Path

__all__ = ["MARK", "end", "outliving"]

MARK = "ROSETTAFORMER_PROCESS"  # environment variable inherited by every process that a program starts
PAUSE = 0.02  # seconds between two checks
ROUNDS = 50  # rounds of killing, since processes may start others meanwhile


def outliving(session: int, mark: str, seconds: float) -> list[int]:
    """Returns the ids of the processes that still run after `seconds`, the time they have to end by themselves."""
    deadline = time.monotonic() + seconds
    while (found := _running(session, mark)) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return found


def end(session: int, mark: str) -> None:
    """Kills the whole process group and, if the system lists processes (Linux), those that have left it."""
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
    """Returns the processes of the session and those with the mark, except the first and zombies."""
    found = []
    sought = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        process = int(folder.name)
        with contextlib.suppress(OSError):
            state, _, _, own = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            if process != session and state not in (b"Z", b"X") and (int(own) == session or sought in (folder / "environ").read_bytes()):
                found.append(process)
    return found
