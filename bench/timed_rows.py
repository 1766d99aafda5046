"""The row of a training step, and the result of a row."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rosettaformer.comparison.timing.rows import About, Call, Row

from . import answers
from .problem import Problem

Step = Callable[[], Any]  # one update of the parameters; returns the loss before it, a scalar that float() reads when it is ready


def training_row(framework: str, name: str, start: Callable[[Problem], Step], problem: Problem, **about: Any) -> Row:
    """Returns the row of a training step. start: builds a model and its optimiser for a problem and returns the step on its one batch.

    about: further fields of the row (peer, compiles, precision). Its `check` starts anew with the problem's `checked`.
    """

    def begin() -> Call:
        step = start(problem)
        return lambda: float(step())

    def check() -> np.ndarray:
        checked = start(problem.checked)
        return np.array([float(checked()) for _ in range(answers.CHECKED)])

    return Row(framework, name, start=begin, check=check, **about)


@dataclass
class Result(About):
    """The result of a row. status: timed; wrong (not the reference's answer); error (an exception); missing (not installed)."""

    task: str = ""
    status: str = "timed"
    message: str = ""
    difference: float | None = None  # from the reference, see `answers`
    agreement: str = ""  # of the answers of a search
    median_ms: float | None = None
    min_ms: float | None = None
    quartiles_ms: tuple[float, float] | None = None
    calls: int = 1  # whose mean is one round's time
    compile_s: float | None = None
    ratio: float | None = None  # of medians, to the framework's best peer in the same precision
    ratio_to_best: float | None = None  # the same, to the best peer of all
    share: float | None = None  # of the time of the framework's matrix products
    memory_mib: float | None = None  # at the peak of a call, beyond what was held before it
    samples_ms: list[float] = field(default_factory=list)
