"""Records how a process of a mesh fails, and combines the records into one message."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..processes import message, printable, words
from .together import Elsewhere, OneProcess

LAUNCHER = "ROSETTAFORMER_LAUNCHER"  # environment variable: id of the process that started this one and prints its errors
_RECORD = "TORCHELASTIC_ERROR_FILE"  # environment variable of PyTorch's launchers: file for the error
MISTAKE, CRASH, ELSEWHERE = "mistake", "crash", "elsewhere"
_TAIL = 2000  # characters kept of a process's last output
WATCH = 0.5  # seconds between two checks that the launcher still runs


@contextlib.contextmanager
def recorded(size: int, local: int, advice: Callable[[], str] = str) -> Iterator[None]:
    """Records an error in the block for the launcher, and prints it if no other process does.

    Under this package's launcher, a process prints nothing. Under torchrun, the first process of a
    machine prints errors that all processes meet; the others print only their own. size: number of
    processes. local: this process's number on its machine. advice: returns how to continue.
    """
    if size == 1:
        yield
        return
    launched = LAUNCHER in os.environ
    if launched:
        threading.Thread(target=_end_with_launcher, args=(int(os.environ[LAUNCHER]),), daemon=True).start()
    try:
        yield
    except BrokenPipeError:  # nobody reads the first process's output
        raise
    except Elsewhere as error:
        _record(ELSEWHERE, error)
        _leave(2)
    except (ValueError, OSError, MemoryError) as error:
        _record(MISTAKE, error)
        if launched or (local and not isinstance(error, OneProcess)):
            _leave(2)
        raise
    except Exception as error:  # includes a framework's error after losing a process
        _record(CRASH, error)
        if launched or local:
            _leave(1)
        said = f"another process was lost, or this one failed: {words(error)}"
        raise ValueError("; ".join(filter(None, (said, advice())))) from error


def read(path: str) -> dict[str, Any]:
    """Returns the record of a process; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return dict(json.loads(Path(path).read_text(encoding="utf-8"))["message"])
    return {}


def mistake(records: Mapping[int, Mapping[str, Any]]) -> str:
    """Returns the message of the first process with a user's error, or ""."""
    return next((said["message"] for said in records.values() if said.get("kind") == MISTAKE), "")


def killed(ended: Mapping[int, int]) -> bool:
    """Whether a signal ended the first process that failed; others fail when they lose it."""
    return next((code for code in ended.values() if code), 0) < 0


def problem(ended: Mapping[int, int], size: int, records: Mapping[int, Mapping[str, Any]], printed: Mapping[int, str]) -> str:
    """Describes the process that failed first, but not by a user's error; prints its output.

    ended: exit codes, in the order in which processes ended. size: number of processes. printed:
    files with their output.
    """
    names = {-one: one.name for one in signal.Signals}
    for rank, code in ended.items():
        if code < 0:
            how = names.get(code, f"signal {-code}")
            return f"the process of rank {rank} (of {size}) was ended by {how}"
        if code and not records.get(rank):
            with contextlib.suppress(OSError):
                sys.stderr.write(printable(Path(printed[rank]).read_text(errors="replace")[-_TAIL:], lines=True))
            return f"the process of rank {rank} (of {size}) ended with exit code {code}"
    rank, said = next((rank, said) for rank, said in records.items() if said)
    sys.stderr.write(printable(said["traceback"], lines=True))
    return f"the process of rank {rank} (of {size}) failed: {said['message']}"


def _record(kind: str, error: BaseException) -> None:
    """Writes the error in the format of PyTorch's launchers."""
    said = {"kind": kind, "message": message(error) if kind == MISTAKE else words(error), "traceback": traceback.format_exc()}
    extra = {"py_callstack": said["traceback"], "timestamp": str(int(time.time()))}
    if path := os.environ.get(_RECORD):
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": said | {"extraInfo": extra}}), encoding="utf-8")


def _leave(code: int) -> None:
    """Ends this process without waiting for the others, which may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_launcher(launcher: int, get: Callable[[], int] = os.getppid) -> None:
    """Ends this process when its launcher has been killed."""
    while get() == launcher:
        time.sleep(WATCH)
    os.kill(os.getpid(), signal.SIGTERM)
