"""Time and memory of several sides: their rows are timed in interleaved rounds, by processes that are asked in turn."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...common.processes import Answer, cores
from ..timing.server import PAUSE

Tell = Callable[..., Answer]  # asks a side that answers as `timing.server.Server` does
SPREAD = 0.25  # between the quartiles, as a share of the median, from which times are said to be unsteady


@dataclass
class Timing:
    """One side in one mode. what: what is timed. status: timed; or wrong or error, explained by `message`.

    first_s: seconds of the first call, which compiles. memory_mib: MiB at the peak of a call, above what is held before it. difference:
    from the first row, in units of its largest value.
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
        """Seconds of the first call beyond those of a call; None of a row that does not compile."""
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
        """The distance between the quartiles, as a share of the median."""
        first, third = self.quartiles_ms
        return (third - first) / self.median_ms


@dataclass
class Speed:
    """load: how many processes wanted to run before, on average over a minute. alone, peaks: MiB of each process with its framework
    loaded, and at its peak, where they are asked for. outputs: the first row's output of each kind. problems: why a side has no rows.
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
        """Why the times are those of a machine that is busy; empty if they are not."""
        found = []
        if self.load > cores():
            found.append(f"before the report began {self.load:.1f} processes wanted to run on {cores()} cores")
        worst = max((timing for timing in self.timings if timing.samples_ms), key=lambda timing: timing.spread, default=None)
        if worst and worst.spread > SPREAD:
            first, third = worst.quartiles_ms
            found.append(f"the rounds differ by a quarter or more: a {worst.what} has quartiles of {first:.3g} and {third:.3g} ms")
        return found

    def table(self, what: str, sides: Mapping[str, Tell], *question: Any, bound: float = math.inf) -> None:
        """Times the rows that the sides make of a question in turn, then drops them.

        bound: by how much of the largest value an output may differ from that of the first row of this kind.
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
        """Times every row once in each round, one round after another."""
        calls = [_asked(timing, tell("calls", index)) for timing, tell, index in rows]
        for number in range(self.rounds):
            self.progress(f"speed: round {number + 1} of {self.rounds}")
            for (timing, tell, index), count in zip(rows, calls, strict=True):
                if timing.status == "timed":
                    time.sleep(PAUSE)
                    if (seconds := _asked(timing, tell("time", index, count))) is not None:
                        timing.samples_ms.append(1e3 * seconds)


def _asked(timing: Timing, answer: Answer) -> Any:
    """Returns the answer; None if there is none, for the reason that is set in the timing."""
    kind, value = answer
    if kind == "answer":
        return value
    timing.status, timing.message = "error", f"{kind}: {value}"
    return None


def _compare(timing: Timing, reference: np.ndarray, output: np.ndarray, bound: float) -> None:
    """Marks a row as wrong, which is then not timed, if its output differs from the first row's."""
    if output.shape != reference.shape:
        timing.status, timing.message = "wrong", f"shape {output.shape}, must be {reference.shape}"
        return
    timing.difference = float(np.abs(output - reference).max() / (np.abs(reference).max() or 1.0))
    if not timing.difference <= bound:
        timing.status, timing.message = "wrong", f"differs by {timing.difference:.1e} of the largest value; at most {bound:.0e}"
