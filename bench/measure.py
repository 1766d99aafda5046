"""Measures the rows of a task: compares each with the reference, then times all in alternating
rounds.
"""

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rosettaformer.comparison.timing.server import PAUSE

from .answers import Reference, bound_of
from .peer_process import Options, PeerProcess, failure, modules, started
from .timed_rows import Result
from .workloads import Task


def run(task: Task, reference: Reference, options: Options) -> tuple[list[Result], dict[str, str]]:
    """Returns a result per row of the task, and each framework's report of its threads or device.

    reference: of the task's problem. Raises ValueError if a framework lacks the device.
    """
    together = [(name,) for name in options.frameworks] if task.apart else [options.frameworks]
    parts = [_part(task, reference, dataclasses.replace(options, frameworks=names)) for names in together]
    results = [result for part, _ in parts for result in part]
    compare(results)
    return results, {name: said for _, described in parts for name, said in described.items()}


def _part(task: Task, reference: Reference, options: Options) -> tuple[list[Result], dict[str, str]]:
    """Measures rows that are timed in alternation."""
    with started(options, [(name, module) for name in options.frameworks for module in modules(name, task)]) as processes:
        rows = [row for process in processes for row in _rows(process, task, options)]
        for row in rows:
            if row.result.status == "timed":
                options.progress(f"{task.name}: checking {row.result.name}")
                _check(row, reference)
        good = [row for row in rows if row.result.status == "timed"]
        _time(task, good, options)
        if task.memory == "together":
            for row in good:
                row.result.memory_mib = row.process.answer("memory", row.index)
    if task.memory == "alone":
        for row in (row for row in good if not row.process.before):
            options.progress(f"{task.name}: memory of {row.result.name}")
            # in a process that only builds this row
            with started(dataclasses.replace(options, before=""), [(row.process.framework, row.process.module)]) as [alone]:
                built = alone.failed or alone.ask("rows", dataclasses.asdict(task), options.device)[0]
                if built == "answer":
                    row.result.memory_mib = alone.answer("memory", row.index)
    described = {process.framework: process.described for process in processes if process.described and not process.second}
    return [row.result for row in rows], described


@dataclass(frozen=True)
class _Row:
    """A row of a process, by its index there; or the result of a process that does not respond."""

    process: PeerProcess
    result: Result
    index: int = -1

    def ask(self, method: str, *arguments: Any) -> Any:
        """Asks and returns the answer; None, with the reason in the result, if there is none."""
        kind, answer = self.process.ask(method, self.index, *arguments)
        if kind == "answer":
            return answer
        failure(self.result, kind, answer)
        return None


def _rows(process: PeerProcess, task: Task, options: Options) -> list[_Row]:
    """Yields the requested rows of the process."""
    if process.failed:
        return [] if process.failed.status == "missing" and process.second else [_Row(process, process.failed)]
    kind, answer = process.ask("rows", dataclasses.asdict(task), options.device)
    if kind == "refused":
        raise ValueError(answer)
    if kind != "answer":
        return [_Row(process, failure(Result(process.framework, task=task.name), kind, answer))]
    rows = [(index, about) for index, about in enumerate(answer) if not (process.before and about["peer"])]
    return [
        _Row(process, Result(task=task.name, **about | _named(about, process.before)), index)
        for index, about in rows
        if not options.only or any(part in about["name"] for part in options.only)
    ]


def _named(about: Mapping[str, Any], before: bool) -> dict[str, Any]:
    """Returns changed fields of a row of another checkout."""
    return {"name": f"{about['name']}, before", "peer": True} if before else {}


def _check(row: _Row, reference: Reference) -> None:
    """Runs the first call, which compiles, and compares its output with the reference."""
    result, answer = row.result, row.ask("check")
    if answer is None:
        return
    result.compile_s, output = answer
    if not output:
        return
    task = reference.problem.task
    bound = bound_of(task.kind, result.precision)
    try:
        reference.check_shape(output)
        if not result.comparable:
            return
        result.difference, result.agreement = reference.difference(output, result.skips)
    except ValueError as error:
        result.status, result.message = "wrong", str(error)
        return
    if not result.difference <= bound:  # also true for NaN
        result.status = "wrong"
        unit = {"training": "loss", "encoder": "output", "beam": "log p"}.get(task.kind, "logit")
        away = f"differs from the reference by {result.difference:.1e} of its largest {unit}"
        result.message = f"{away}; at most {bound:.0e}"


def _time(task: Task, rows: Sequence[_Row], options: Options) -> None:
    """Times every row once per round."""
    for row in rows:
        options.progress(f"{task.name}: warming up {row.result.name}")
        row.result.calls = row.ask("calls") or 1
    for number in range(options.rounds):
        options.progress(f"{task.name}: round {number + 1} of {options.rounds}")
        for row in rows:
            if row.result.status == "timed":
                time.sleep(PAUSE)
                if (seconds := row.ask("time", row.result.calls)) is not None:
                    row.result.samples_ms.append(1e3 * seconds)
    for result in (row.result for row in rows if row.result.status == "timed"):
        taken = result.samples_ms
        result.median_ms, result.min_ms = statistics.median(taken), min(taken)
        first, _, third = statistics.quantiles(taken, method="inclusive") if len(taken) > 1 else taken * 3
        result.quartiles_ms = first, third
        if (called := result.compile_s) is not None:
            result.compile_s = max(0.0, called - result.median_ms / 1e3) if result.compiles else None


def compare(results: Sequence[Result]) -> None:
    """Computes ratios of medians in a precision, to the framework's best peer and the best of all.

    A peer that is not compared with the reference only counts if the framework has no other. NumPy
    has no peers and is compared with the best of all.
    """
    timed = [result for result in results if result.median_ms is not None]
    for result in timed:
        if result.ceiling:
            continue
        alike = [row for row in timed if row.precision == result.precision]
        own = [row for row in alike if row.framework == result.framework]
        result.ratio, result.ratio_to_best = _ratio(result, own), _ratio(result, alike)
        ceilings = [row.median_ms for row in own if row.ceiling]
        result.share = min(ceilings) / result.median_ms if ceilings else None  # type: ignore[operator, type-var]


def _ratio(result: Result, rows: Sequence[Result]) -> float | None:
    peers = [row for row in rows if row.peer]
    peers = [peer for peer in peers if peer.comparable] or peers
    return result.median_ms / min(peer.median_ms for peer in peers) if peers else None  # type: ignore[operator, type-var]
