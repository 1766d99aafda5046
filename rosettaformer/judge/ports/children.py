"""The judge's side of a port on a mesh: one process per device, or one with all devices."""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import ml_dtypes
import numpy as np

from ...common.processes import Answer, Child
from ...common.processes.program import Stopped
from ..status import Kind

GRACE = 3.0  # seconds for the other answers after one process failed: the others may wait for it forever
SAME = 1000  # tolerance between processes, in roundings of the largest value
WORST = (Kind.CRASH, Kind.HANG, Kind.ERROR, Kind.MISSING, Kind.DIFFERS, Kind.SKIPPED, Kind.UNSUPPORTED, Kind.NOT_COVERED)
HOST = "127.0.0.1"

Start = Callable[[int, Mapping[str, str], Any], Child]


class Children:
    """Sends every question to all processes and merges their answers, like a `Child`.

    Unless `known`, only the first process is started, and its handshake tells whether the port
    needs one process per device; if so, the others start. If a process fails, its answer is the
    answer, and processes that still wait for it are ended. by_processes: whether the port needs one
    process per device; None before the handshake. apart: all answers to the last question if they
    disagree; otherwise empty.
    """

    by_processes: bool | None = None
    apart: Sequence[Answer] = ()

    def __init__(self, start: Start, devices: int, stopped: threading.Event | None = None, known: bool = False) -> None:
        """start: starts the process of a rank with an environment; its third argument is an event
        whose `is_set()` makes waits raise Stopped. known: the port is known to need one process per
        device."""
        self._start, self._devices, self._halt = start, devices, _Halt(stopped)
        self._port = str(_free_port())
        self._greeted, self._end = False, False
        self._children = [self._started(rank) for rank in range(devices if known else 1)]

    @property
    def running(self) -> bool:
        """Whether all processes can take a question."""
        return not self._end and all(child.running for child in self._children)

    @property
    def ended(self) -> bool:
        """Whether the last answer ended the processes."""
        return self._end or any(child.ended for child in self._children)

    def ask(self, *question: Any, limit: float) -> None:
        """Sends a question to all processes. Each must read it within `limit` seconds."""
        for child in self._children:
            child.ask(*question, limit=limit)

    def answer(self, limit: float) -> Answer:
        """Returns the merged answer, at first the handshake; or a failure or disagreement."""
        if self._greeted:
            return self._one_of(self._answers(self._children, limit))
        self._greeted = True
        answers = self._answers(self._children, limit)
        kind, about = answers[0] or (Kind.CRASH, "")
        self.by_processes = kind == Kind.READY and isinstance(about, Mapping) and about.get("processes") is True
        if self.by_processes and len(self._children) < self._devices:
            self._children += [self._started(rank) for rank in range(1, self._devices)]
            answers += self._answers(self._children[1:], limit)
        return answers[0] if answers[0] and all(answer and answer[0] == Kind.READY for answer in answers) else self._one_of(answers)

    def refuse(self, why: str) -> Answer:
        """Ends the processes after a malformed answer, and returns the answer that replaces it."""
        answer = self._children[0].refuse(why)
        self.close()
        return answer

    def close(self) -> int:
        """Ends all processes. Returns the number of ended descendants."""
        self._end = True
        with ThreadPoolExecutor(len(self._children)) as pool:
            return sum(pool.map(Child.close, self._children))

    def _started(self, rank: int) -> Child:
        return self._start(rank, _environment(rank, self._devices, self._port), self._halt)

    def _answers(self, children: Sequence[Child], limit: float) -> list[Answer | None]:
        """Returns each process's answer; None if it was ended because another failed."""
        with ThreadPoolExecutor(len(children)) as pool:
            asked: list[Future[Answer]] = [pool.submit(child.answer, limit) for child in children]
            waiting, grace = set(asked), None
            while waiting:
                answered, waiting = wait(waiting, grace, FIRST_COMPLETED)
                if not answered:
                    self._halt.ended = True
                    break
                if any(future.exception() or future.result()[0] not in (Kind.OUTPUTS, Kind.READY) for future in answered):
                    grace = GRACE
        for error in filter(None, (future.exception() for future in asked)):
            if not (isinstance(error, Stopped) and self._halt.ended):
                raise error
        return [None if future.exception() else future.result() for future in asked]

    def _one_of(self, answers: Sequence[Answer | None]) -> Answer:
        """Merges the answers. Ends the processes if an answer is missing."""
        self.apart = ()
        given = {rank: answer for rank, answer in enumerate(answers) if answer}
        failed = {rank: answer for rank, answer in given.items() if answer[0] not in (Kind.OUTPUTS, Kind.READY)}
        if len(given) < len(answers) or any(child.ended for child in self._children):
            self.close()
        if not failed:
            agreed = _agreed([*given.values()])
            self.apart = [*given.values()] if agreed[0] == Kind.DIFFERS else ()
            return agreed
        rank, (kind, why) = min(failed.items(), key=lambda item: WORST.index(Kind(item[1][0])) if item[1][0] in WORST else len(WORST))
        if all(answer == (kind, why) for answer in answers):
            return kind, why
        return kind, f"process {rank} of {len(answers)}: {why}"


class _Halt:
    """Tells waiting threads to stop: the run is over, or another process has failed."""

    def __init__(self, stopped: threading.Event | None) -> None:
        self._stopped, self.ended = stopped, False

    def is_set(self) -> bool:
        return self.ended or bool(self._stopped and self._stopped.is_set())


def _agreed(answers: Sequence[Answer]) -> Answer:
    """Returns the first answer, or where another answer differs by more than rounding."""
    first = answers[0]
    for rank, (_, other) in enumerate(answers[1:], start=1):
        if difference := _difference(first[1], other):
            return Kind.DIFFERS, f"the processes disagree: {difference.format(rank=rank)}"
    return first


def _difference(first: Any, other: Any) -> str:
    if not _is_arrays(first):  # the caller reports that
        return ""
    if not _is_arrays(other):
        return "process {rank} does not return a mapping from name to array"
    if first.keys() != other.keys():
        return "process {rank} and process 0 return different names"
    largest = max((_largest(value) for value in first.values()), default=0.0)
    for name, value in first.items():
        if value.shape != other[name].shape or value.dtype != other[name].dtype:
            return f"{name} has shape {other[name].shape} in process {{rank}} and {value.shape} in process 0"
        if value.tobytes() == other[name].tobytes():
            continue
        apart = _largest(np.nan_to_num(value.astype(np.float64)) - np.nan_to_num(other[name].astype(np.float64)))
        if apart > SAME * _rounding(value.dtype) * largest or not np.array_equal(np.isfinite(value), np.isfinite(other[name])):
            return f"{name} differs by up to {apart:.3g} between process {{rank}} and process 0"
    return ""


def _is_arrays(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(part, np.ndarray) for part in value.values())


def _largest(value: np.ndarray) -> float:
    return float(np.abs(np.nan_to_num(value.astype(np.float64))).max(initial=0.0))


def _rounding(dtype: np.dtype) -> float:
    """Returns the relative rounding error of the dtype; 0 for integers."""
    return float(ml_dtypes.finfo(dtype).eps) if dtype.kind in "fV" else 0.0


def _environment(rank: int, devices: int, port: str) -> dict[str, str]:
    """Returns the environment variables that torchrun sets for a process."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": devices, "LOCAL_WORLD_SIZE": devices}
    return {name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": HOST, "MASTER_PORT": port}


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        return int(listening.getsockname()[1])
