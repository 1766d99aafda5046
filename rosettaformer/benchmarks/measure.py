"""Rows of one task: each is compared with the reference, then they are timed in turn, in rounds, by processes that idle meanwhile."""

import dataclasses
import statistics
import time
from collections.abc import Sequence

from .answers import Reference, bound_of
from .peer_process import PeerProcess, Settings, failure, modules, started
from .rows import Result
from .workloads import Task

__all__ = ["compare", "run"]

PAUSE = 0.05  # seconds, in which the threads of the row before stop spinning for work


def run(task: Task, reference: Reference, settings: Settings) -> tuple[list[Result], dict[str, str]]:
    """A result for each row of the task, and what each framework says of its threads or device. reference: of the task's problem.

    Raises ValueError where a framework has not the device.
    """
    with started(settings, [(name, module) for name in settings.frameworks for module in modules(name, task)]) as processes:
        results, asked = [], []
        for process in processes:
            found, indices = _rows(process, task, settings)
            results += found
            asked += [(process, index, result) for index, result in indices]
        for process, index, result in asked:
            settings.progress(f"{task.name}: checking {result.name}")
            _check(process, index, result, reference)
        good = [(process, index, result) for process, index, result in asked if result.status == "timed"]
        _time(task, good, settings)
        if task.memory == "beside":
            for process, index, result in good:
                result.memory_mib = process.answer("memory", index)
    if task.memory == "alone":
        for process, index, result in good:
            settings.progress(f"{task.name}: memory of {result.name}")
            result.memory_mib = _memory(process, index, task, settings)
    compare(results)
    return results, {process.framework: process.described for process in processes if process.described and not process.second}


def _rows(process: PeerProcess, task: Task, settings: Settings) -> tuple[list[Result], list[tuple[int, Result]]]:
    """The process's results, and those of rows that can be run, with their number."""
    if process.failed:
        return ([] if process.failed.status == "missing" and process.second else [process.failed]), []
    kind, answer = process.ask("rows", dataclasses.asdict(task), settings.device)
    if kind == "refused":
        raise ValueError(answer)
    if kind != "answer":
        return [failure(Result(process.framework, task=task.name), kind, answer)], []
    chosen = [(index, Result(task=task.name, **row)) for index, row in enumerate(answer) if _chosen(row["name"], settings)]
    return [result for _, result in chosen], chosen


def _chosen(name: str, settings: Settings) -> bool:
    return not settings.only or any(part in name for part in settings.only)


def _check(process: PeerProcess, index: int, result: Result, reference: Reference) -> None:
    """The first call, which compiles, and how far its output is from the reference."""
    kind, answer = process.ask("check", index)
    if kind != "answer":
        failure(result, kind, answer)
        return
    seconds, output = answer
    result.compile_s = seconds
    if not output:
        return
    task = reference.problem.task
    bound = bound_of(task.kind, result.precision)
    try:
        reference.check_shape(output)
        if not result.comparable:
            return
        result.difference, result.agreement = reference.difference(output)
    except ValueError as error:
        result.status, result.message = "wrong", str(error)
        return
    if not result.difference <= bound:  # NaN is wrong too
        result.status = "wrong"
        result.message = f"differs from the reference by {result.difference:.1e} of its largest {_unit(task)}; at most {bound:.0e}"


def _unit(task: Task) -> str:
    return {"training": "loss", "encoder": "output", "beam": "log p"}.get(task.kind, "logit")


def _time(task: Task, rows: Sequence[tuple[PeerProcess, int, Result]], settings: Settings) -> None:
    """One round after another, in each of them every row once."""
    for process, index, result in rows:
        settings.progress(f"{task.name}: warming up {result.name}")
        kind, answer = process.ask("calls", index)
        if kind == "answer":
            result.calls = answer
        else:
            failure(result, kind, answer)
    for number in range(settings.rounds):
        settings.progress(f"{task.name}: round {number + 1} of {settings.rounds}")
        for process, index, result in rows:
            if result.status != "timed":
                continue
            time.sleep(PAUSE)
            kind, answer = process.ask("time", index, result.calls)
            if kind == "answer":
                result.samples_ms.append(1e3 * answer)
            else:
                failure(result, kind, answer)
    for _, _, result in rows:
        if result.status == "timed":
            _summarise(result)


def _summarise(result: Result) -> None:
    taken = result.samples_ms
    result.median_ms, result.min_ms = statistics.median(taken), min(taken)
    first, _, third = statistics.quantiles(taken, method="inclusive") if len(taken) > 1 else taken * 3
    result.quartiles_ms = first, third
    compiles = result.compiles and result.compile_s is not None
    result.compile_s = max(0.0, result.compile_s - result.median_ms / 1e3) if compiles else None  # type: ignore[operator]


def _memory(process: PeerProcess, index: int, task: Task, settings: Settings) -> float | None:
    """Measured in a process that builds this row alone."""
    with started(settings, [(process.framework, process.module)]) as [alone]:
        if alone.failed or alone.ask("rows", dataclasses.asdict(task), settings.device)[0] != "answer":
            return None
        return alone.answer("memory", index)


def compare(results: Sequence[Result]) -> None:
    """Ratios of medians, within one precision: to the framework's best peer and to the best of all. A peer that is not compared with the
    reference is a measure only where a framework has no other. NumPy has no peers, and is held to the best of all."""
    for result in results:
        if result.median_ms is None or result.ceiling:
            continue
        peers = [peer for peer in results if peer.peer and peer.median_ms is not None and peer.precision == result.precision]
        own = [peer for peer in peers if peer.framework == result.framework]
        result.ratio, result.ratio_to_best = _ratio(result, own), _ratio(result, peers)
        ceilings = [
            row.median_ms
            for row in results
            if row.ceiling and row.median_ms is not None and (row.framework, row.precision) == (result.framework, result.precision)
        ]
        result.share = min(ceilings) / result.median_ms if ceilings else None


def _ratio(result: Result, peers: Sequence[Result]) -> float | None:
    peers = [peer for peer in peers if peer.comparable] or peers
    return result.median_ms / min(peer.median_ms for peer in peers) if peers else None  # type: ignore[operator, type-var]
