"""The row of a training step, and the result of a row."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rosettaformer.comparison.timing.rows import About, Call, Row

from . import answers
from .problem import Problem

Step = Callable[[], Any]  # updates the parameters; returns the loss before, a scalar for float()


def training_row(framework: str, name: str, start: Callable[[Problem], Step], problem: Problem, **about: Any) -> Row:
    """Returns the row of a training step.

    start: builds a model and its optimizer for a problem and returns the step on its one batch.
    about: more fields of the row (peer, compiles, precision). Its `check` restarts with the
    problem's `checked`.
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
    """The result of a row. status: timed, wrong (output differs), error, or missing."""

    task: str = ""
    status: str = "timed"
    message: str = ""
    difference: float | None = None  # from the reference; see `answers`
    agreement: str = ""  # of a search's outputs
    median_ms: float | None = None
    min_ms: float | None = None
    quartiles_ms: tuple[float, float] | None = None
    calls: int = 1  # calls averaged in one round
    compile_s: float | None = None
    ratio: float | None = None  # median time over that of the framework's best peer in the same precision
    ratio_to_best: float | None = None  # the same for the best of all peers
    share: float | None = None  # time of the framework's matrix products over the row's time
    memory_mib: float | None = None  # peak of a call, above what was held before
    samples_ms: list[float] = field(default_factory=list)
