"""Time and memory of several sides, measured in interleaved rounds, one process at a time."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...common.processes import Answer, cores
from ..timing.server import PAUSE

Tell = Callable[..., Answer]  # sends a request to a `timing.server.Server`
SPREAD = 0.25  # interquartile range / median above which a warning is given


@dataclass
class Timing:
    """Timing of one side in one mode. status: timed; or wrong or error, explained by `message`.

    first_s: seconds of the first call, with compilation. memory_mib: peak of a call above the
    memory before it. difference: from the first row, relative to its largest value.
    """

    what: str
    name: str
    mode: str
    status: str = "timed"
    message: str = ""
    samples_ms: list[float] = field(default_factory=list)
    first_s: float | None = None
    memory_mib: float | None = None
    difference: float = 0.0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def compile_s(self) -> float | None:
        """Seconds of the first call beyond the median; None without compilation."""
        if self.mode != "compiled" or self.first_s is None or not self.samples_ms:
            return None
        return max(0.0, self.first_s - self.median_ms / 1e3)

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        if len(self.samples_ms) < 2:
            return self.median_ms, self.median_ms
        first, _, third = statistics.quantiles(self.samples_ms, method="inclusive")
        return first, third

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median."""
        first, third = self.quartiles_ms
        return (third - first) / self.median_ms


@dataclass
class Speed:
    """Times and memory of several sides.

    load: load average of the last minute before the start. alone, peaks: MiB of each process with
    only its framework loaded, and at its peak. outputs: the first row's output of each kind.
    problems: errors of sides without rows.
    """

    rounds: int
    threads: int
    compiled: bool = True
    load: float = math.nan
    tokens: str = ""
    timings: list[Timing] = field(default_factory=list)
    alone: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda text: None

    @property
    def warnings(self) -> list[str]:
        """Warnings that the machine was busy."""
        found = []
        if self.load > cores():
            found.append(f"the load average was {self.load:.1f} on {cores()} cores before the measurement")
        worst = max((timing for timing in self.timings if timing.samples_ms), key=lambda timing: timing.spread, default=None)
        if worst and worst.spread > SPREAD:
            first, third = worst.quartiles_ms
            found.append(f"times vary by a quarter or more: the quartiles of {worst.what} are {first:.3g} and {third:.3g} ms")
        return found

    def table(self, what: str, sides: Mapping[str, Tell], *question: Any, bound: float = math.inf) -> None:
        """Times the rows that the sides create for a request, then drops them.

        bound: maximum difference of an output from the first row's, relative to the largest value.
        """
        rows: list[tuple[Timing, Tell, int]] = []
        for name, tell in sides.items():
            kind, answer = tell(*question)
            if kind == "answer":
                rows += [(Timing(what, name, about["name"]), tell, index) for index, about in enumerate(answer)]
            else:
                self.problems.setdefault(name, []).append(f"{what}: {kind}, {answer}")
        for number, (timing, tell, index) in enumerate(rows, start=1):
            self.progress(f"speed: {what}, row {number} of {len(rows)}: {timing.name} {timing.mode}")
            if (answer := _asked(timing, tell("check", index))) is not None:
                timing.first_s, outputs = answer
                for output in outputs.values():
                    _compare(timing, self.outputs.setdefault(what, output), output, bound)
        self._time([row for row in rows if row[0].status == "timed"])
        for timing, tell, index in rows:
            if timing.status == "timed":
                kind, memory = tell("memory", index)
                timing.memory_mib = memory if kind == "answer" else None
        for tell in sides.values():
            tell("drop")
        self.timings += [timing for timing, _, _ in rows]

    def _time(self, rows: Sequence[tuple[Timing, Tell, int]]) -> None:
        """Times every row once per round."""
        calls = [_asked(timing, tell("calls", index)) for timing, tell, index in rows]
        for number in range(self.rounds):
            self.progress(f"speed: round {number + 1} of {self.rounds}")
            for (timing, tell, index), count in zip(rows, calls, strict=True):
                if timing.status == "timed":
                    time.sleep(PAUSE)
                    if (seconds := _asked(timing, tell("time", index, count))) is not None:
                        timing.samples_ms.append(1e3 * seconds)


def _asked(timing: Timing, answer: Answer) -> Any:
    """Returns the answer, or None and records the error in the timing."""
    kind, value = answer
    if kind == "answer":
        return value
    timing.status, timing.message = "error", f"{kind}: {value}"
    return None


def _compare(timing: Timing, reference: np.ndarray, output: np.ndarray, bound: float) -> None:
    """Marks a row as wrong, so that it is not timed, if its output differs from the first row's."""
    if output.shape != reference.shape:
        timing.status, timing.message = "wrong", f"shape must be {reference.shape}; got {output.shape}"
        return
    timing.difference = float(np.abs(output - reference).max() / (np.abs(reference).max() or 1.0))
    if not timing.difference <= bound:
        timing.status, timing.message = "wrong", f"relative difference must be at most {bound:.0e}; got {timing.difference:.1e}"
