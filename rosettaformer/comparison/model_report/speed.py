"""Measures time and memory of the forward pass and the training step, in processes that are asked in turn."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...common.processes import Answer, cores
from ..timing.rows import BOUNDS, LOSS_BOUNDS
from ..timing.server import PAUSE
from .layer_errors import whole_case
from .reported_model import Subject
from .training import Plan
from .training_worker import STEPS, modes

Ask = Callable[..., Answer]
Progress = Callable[[str], None]
SPREAD = 0.25  # between the quartiles, as a share of the median, from which times are said to be unsteady
UNITS = ("KiB", "MiB", "GiB", "TiB")


def size(mib: float | None) -> str:
    """Returns a size in the unit that suits it; a dash if there is none."""
    if mib is None or not math.isfinite(mib):
        return "–"
    count = mib * 1024**2
    if count < 1024:
        return f"{count:.0f} bytes"
    power = min(len(UNITS), int(math.log(count, 1024) + 1e-9))
    value = count / 1024**power
    return f"{value:,.0f} {UNITS[power - 1]}" if value >= 99.5 else f"{value:.3g} {UNITS[power - 1]}"


@dataclass
class Timing:
    """One implementation in one mode. what: "forward pass" or "training step". status: timed; or wrong or error, explained by `message`.

    memory: MiB at the peak of a call, above what is held before it. difference: from NumPy, in units of its largest value.
    """

    what: str
    name: str
    mode: str
    status: str = "timed"
    message: str = ""
    samples_ms: list[float] = field(default_factory=list)
    compile_s: float | None = None
    memory_mib: float | None = None
    difference: float = 0.0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)

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
    """load: how many processes wanted to run before the report began, on average over a minute. compiled: whether every mode has a row,
    see `training_worker.modes`. alone, peaks: MiB of each process with its framework loaded, and at its peak. outputs: the first row's
    output of each kind.
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


def measure(result: Speed, asks: Mapping[str, Ask], subject: Subject, plan: Plan, progress: Progress) -> None:
    """Times the forward pass of the whole model on the subject's tokens, then a training step of the plan: eager, then compiled."""
    case = whole_case(subject).at("float32")
    given = case.component, case.config.to_dict(), dict(case.parameters), dict(case.inputs)
    result.tokens = " and ".join(f"{len(words)} {side} tokens" for side, words in subject.tokens.items() if len(words))
    for name, ask in asks.items():
        result.alone[name] = _number(ask("alone"))
    _table(result, "forward pass", asks, lambda ask: ask("passes", *given, result.compiled), BOUNDS["float32"], progress)
    step = plan.config.to_dict(), dict(plan.values), plan.recipe.to_dict(), plan.batches[0]
    for mode in ("eager", "compiled"):
        steps = {name: ask for name, ask in asks.items() if name in STEPS and mode in modes(STEPS, name, result.compiled)}
        if steps:
            _table(result, "training step", steps, lambda ask, mode=mode: ask("training", *step, mode), LOSS_BOUNDS["float32"], progress)  # type: ignore[misc]
    for name, ask in asks.items():
        result.peaks[name] = _number(ask("peak"))


def _number(answer: Answer) -> float:
    return float(answer[1]) if answer[0] == "answer" else math.nan


def _table(result: Speed, what: str, asks: Mapping[str, Ask], rows: Callable[[Ask], Answer], bound: float, progress: Progress) -> None:
    """Times rows in turn, then drops them."""
    made: list[tuple[Timing, Ask, int]] = []
    for name, ask in asks.items():
        kind, answer = rows(ask)
        if kind != "answer":
            result.problems.setdefault(name, []).append(f"{what}: {kind}, {answer}")
            continue
        made += [(Timing(what, name, about["name"]), ask, index) for index, about in enumerate(answer)]
    for number, (timing, ask, index) in enumerate(made, start=1):
        progress(f"speed: {what}, row {number} of {len(made)}: {timing.name} {timing.mode}")
        if (answer := _asked(timing, ask("check", index))) is None:
            continue
        timing.compile_s, output = answer
        _compare(timing, result.outputs.setdefault(what, output["output"]), output["output"], bound)
    _time(made, result.rounds, progress)
    for timing, ask, index in made:
        if timing.status == "timed":
            kind, memory = ask("memory", index)
            timing.memory_mib = memory if kind == "answer" else None
    for ask in asks.values():
        ask("drop")
    result.timings += [timing for timing, _, _ in made]


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


def _time(made: list[tuple[Timing, Ask, int]], rounds: int, progress: Progress) -> None:
    """Times every row once in each round, one round after another."""
    calls = {id(timing): _asked(timing, ask("calls", index)) for timing, ask, index in made if timing.status == "timed"}
    for number in range(rounds):
        progress(f"speed: round {number + 1} of {rounds}")
        for timing, ask, index in made:
            if timing.status == "timed":
                time.sleep(PAUSE)
                if (seconds := _asked(timing, ask("time", index, calls[id(timing)]))) is not None:
                    timing.samples_ms.append(1e3 * seconds)
    for timing, _, _ in made:
        if timing.status == "timed" and timing.compile_s is not None:
            timing.compile_s = max(0.0, timing.compile_s - timing.median_ms / 1e3) if timing.mode == "compiled" else None
