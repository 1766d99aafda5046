"""What a process of a mesh says when it fails, and what is made of it: one message for all of them."""

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

LAUNCHER = "ROSETTAFORMER_LAUNCHER"  # environment variable: the process that started this one and prints its errors
_RECORD = "TORCHELASTIC_ERROR_FILE"  # environment variable of PyTorch's launchers: the file of the error
MISTAKE, CRASH, ELSEWHERE = "mistake", "crash", "elsewhere"
_TAIL = 2000  # characters of what a process printed last
WATCH = 0.5  # seconds between two looks whether the launcher still runs


@contextlib.contextmanager
def recorded(size: int, local: int, advice: Callable[[], str] = str) -> Iterator[None]:
    """Within the block an error of a process of several is recorded for the launcher, and printed where nobody else prints it.

    Under our launcher a process prints nothing. Under torchrun the first of a machine prints what all meet alike, and every other only what
    it alone met. size: of the run; local: the rank of this process on its machine; advice: how to go on.
    """
    if size == 1:
        yield
        return
    launched = LAUNCHER in os.environ
    if launched:
        threading.Thread(target=_end_with_launcher, args=(int(os.environ[LAUNCHER]),), daemon=True).start()
    try:
        yield
    except BrokenPipeError:  # nobody reads what the first one prints
        raise
    except Elsewhere as error:
        _record(ELSEWHERE, error)
        _leave(2)
    except (ValueError, OSError, MemoryError) as error:
        _record(MISTAKE, error)
        if launched or (local and not isinstance(error, OneProcess)):
            _leave(2)
        raise
    except Exception as error:  # also what a framework raises when it has lost a process
        _record(CRASH, error)
        if launched or local:
            _leave(1)
        said = f"the run has lost another process, or this one failed: {words(error)}"
        raise ValueError("; ".join(filter(None, (said, advice())))) from error


def read(path: str) -> dict[str, Any]:
    """Returns what a process recorded; nothing if it did not."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return dict(json.loads(Path(path).read_text(encoding="utf-8"))["message"])
    return {}


def mistake(records: Mapping[int, Mapping[str, Any]]) -> str:
    """Returns the message of the first process that met a user's mistake, or nothing."""
    return next((said["message"] for said in records.values() if said.get("kind") == MISTAKE), "")


def killed(ended: Mapping[int, int]) -> bool:
    """Whether the first process that failed was ended by a signal: others fail when they lose it."""
    return next((code for code in ended.values() if code), 0) < 0


def problem(ended: Mapping[int, int], size: int, records: Mapping[int, Mapping[str, Any]], printed: Mapping[int, str]) -> str:
    """Describes the process that failed first and is no user's mistake, and prints what it said last.

    ended: exit codes, in the order in which processes ended. size: how many there were. printed: files of what they printed.
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
    """Writes the error as PyTorch's launchers read it."""
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
    """Asks this process to end when its launcher has been killed."""
    while get() == launcher:
        time.sleep(WATCH)
    os.kill(os.getpid(), signal.SIGTERM)
