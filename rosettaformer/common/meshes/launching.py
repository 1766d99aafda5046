"""Starts one process per device of a mesh with PyTorch's launcher; if one fails, ends them all."""

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

TICK = 0.05  # seconds between two checks of the processes
GRACE = 5.0  # seconds for the other processes to end by themselves after a failure
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: str, arguments: Sequence[str], mesh: Mesh, device: str) -> str:
    """Runs a command in one process per device. Returns "", or which process failed and how.

    Ctrl-C and SIGTERM are forwarded once; the second one kills the processes. Raises ValueError on
    missing devices, and with the message of a process about a user's error.
    """
    refuse_missing(mesh, device)
    with tempfile.TemporaryDirectory() as logs, _Processes((command, *arguments), mesh.devices, Path(logs)) as processes:
        problem = processes.problem()
    if problem:
        Console(stderr=True).show_cursor()  # the first process may have ended while it was hidden
    return problem


def refuse_missing(mesh: Mesh, device: str) -> None:
    """Raises ValueError if torch finds fewer devices than the mesh needs."""
    import torch

    if device.startswith("cuda") and torch.cuda.device_count() < mesh.devices:
        raise ValueError(f"the mesh {mesh} needs {mesh.devices} CUDA devices; torch finds {torch.cuda.device_count()}")


class _Processes(contextlib.AbstractContextManager["_Processes"]):
    """The processes of a run. The first one prints; the output of the others goes to files."""

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
        """Waits for all processes, or for the first failure, and returns how it failed, or "".

        Raises ValueError with the message about a user's error, KeyboardInterrupt or SystemExit
        after a signal, and BrokenPipeError if nobody reads the first process's output.
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
            ended |= {rank: code for rank, code in self._ended().items() if rank not in ended}  # keeps the order in which they end
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
        """Returns the exit codes of ended processes, those ended by a signal first."""
        codes = {rank: handler.proc.poll() for rank, handler in self._handlers.items()}
        return dict(sorted(((rank, code) for rank, code in codes.items() if code is not None), key=lambda pair: (pair[1] >= 0, pair)))

    def _interrupted(self) -> None:
        if self._asked[0] == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + self._asked[0])

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(number)


def _store() -> Any:
    """Returns the store where the processes meet, on a free port or on MASTER_PORT."""
    from torch.distributed import DistNetworkError, TCPStore

    port = os.environ.get("MASTER_PORT", "0")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"the environment variable MASTER_PORT must be a port; got {port!r:.50}")
    try:
        return TCPStore("127.0.0.1", int(port), is_master=True, wait_for_workers=False)
    except DistNetworkError:
        raise ValueError(f"the port {port} is in use; set MASTER_PORT to a free port, or unset it") from None


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Returns torchrun's variables, a share of the threads, and this process, which they watch."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    own = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True", failing.LAUNCHER: str(os.getpid())}
    own["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return limited_threads(thread_share(count)) | paths | own | {name: str(number) for name, number in numbers.items()}
