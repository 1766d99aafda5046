"""Starts one process for each device of a mesh with PyTorch's own launcher, and ends them all when one fails."""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from reference_numpy.sharding import Mesh

from ..processes import GONE, limited_threads, thread_share
from . import failing

TICK = 0.05  # seconds between two looks at the processes
GRACE = 5.0  # seconds in which the others end by themselves when one has failed
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: str, arguments: Sequence[str], mesh: Mesh, device: str) -> str:
    """Runs a command in a process for each device; returns nothing when all have ended well, or which has failed, and how.

    Ctrl-C and SIGTERM are passed on once; the second ends the processes at once. Raises ValueError on devices that are missing, and with
    what a process says of a user's mistake.
    """
    refuse_missing(mesh, device)
    with tempfile.TemporaryDirectory() as logs, _Processes((command, *arguments), mesh.devices, Path(logs)) as processes:
        problem = processes.problem()
    if problem:
        Console(stderr=True).show_cursor()  # the first process may have ended while it was hidden
    return problem


def refuse_missing(mesh: Mesh, device: str) -> None:
    """Raises ValueError if torch sees fewer devices than the mesh needs."""
    import torch

    if device.startswith("cuda") and torch.cuda.device_count() < mesh.devices:
        raise ValueError(f"the mesh {mesh} needs {mesh.devices} devices; torch sees {torch.cuda.device_count()} of CUDA")


class _Processes(contextlib.AbstractContextManager["_Processes"]):
    """The processes of a run. The first one prints; what the others print is kept in a folder."""

    def __init__(self, words: Sequence[str], count: int, logs: Path) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes

        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
        self._asked: list[int] = []  # signals
        self._before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGQUIT)}
        self._store = _store()
        self._context: Any = start_processes(
            words[0],
            sys.executable,
            args=dict.fromkeys(range(count), ("-m", "rosettaformer", *words)),
            envs={rank: _environment(rank, count, self._store.port) for rank in range(count)},
            logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=dict.fromkeys(range(1, count), Std.ALL)),
        )
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._ask)

    def __exit__(self, *error: object) -> None:
        self._context.close(signal.SIGKILL, GRACE)
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def problem(self) -> str:
        """Waits until all processes have ended and returns nothing, or until one has failed and returns how.

        Raises ValueError with what a process says of a user's mistake, KeyboardInterrupt or SystemExit if a signal has ended all, and
        BrokenPipeError if nobody reads what the first one prints.
        """
        told = False
        while len(ended := self._ended()) < len(self._handlers) and not any(ended.values()):
            if len(self._asked) > 1:
                self._interrupted()
            if self._asked and not told:
                told = True
                for handler in self._handlers.values():
                    if handler.proc.poll() is None:
                        handler.proc.send_signal(self._asked[0])
            time.sleep(TICK)
        if not any(ended.values()):
            return ""
        deadline = time.monotonic() + GRACE
        while len(ended) < len(self._handlers) and not failing.killed(ended) and time.monotonic() < deadline and len(self._asked) < 2:
            time.sleep(TICK)
            ended |= {rank: code for rank, code in self._ended().items() if rank not in ended}  # in the order in which they end
        self._context.close(signal.SIGKILL, GRACE)
        records = {rank: failing.read(path) for rank, path in self._context.error_files.items()}
        if (mistake := failing.mistake(records)) and not failing.killed(ended):
            raise ValueError(mistake)
        if self._asked:
            self._interrupted()
        if ended.get(0) == GONE:
            raise BrokenPipeError
        return failing.problem(ended, len(self._handlers), records, self._context.stderrs)

    @property
    def _handlers(self) -> dict[int, Any]:
        return self._context.subprocess_handlers

    def _ended(self) -> dict[int, int]:
        """Returns the exit codes of the processes that have ended; first those that a signal has ended."""
        codes = {rank: handler.proc.poll() for rank, handler in self._handlers.items()}
        return dict(sorted(((rank, code) for rank, code in codes.items() if code is not None), key=lambda pair: (pair[1] >= 0, pair)))

    def _interrupted(self) -> None:
        if self._asked[0] == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + self._asked[0])

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(number)


def _store() -> Any:
    """Returns the store at which the processes meet, on a free port, or on MASTER_PORT if the environment names one."""
    from torch.distributed import DistNetworkError, TCPStore

    port = os.environ.get("MASTER_PORT", "0")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"MASTER_PORT of the environment must be a port; got {port!r:.50}")
    try:
        return TCPStore("127.0.0.1", int(port), is_master=True, wait_for_workers=False)
    except DistNetworkError:
        raise ValueError(f"the port {port} is taken: MASTER_PORT of the environment must name a free one, or nothing") from None


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Returns what torchrun sets, threads that the processes share, and this process, without which they end."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    own = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True", failing.LAUNCHER: str(os.getpid())}
    own["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return limited_threads(thread_share(count)) | paths | own | {name: str(number) for name, number in numbers.items()}
