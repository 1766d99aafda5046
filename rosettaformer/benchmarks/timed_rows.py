"""A row of a table: one implementation of a task, and its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import answers
from .problem import Problem

Call = Callable[[], Any]  # the timed call; returns when its result is ready
Step = Callable[[], Any]  # one update of the parameters; returns the loss before it, a scalar that float() reads when it is ready


def named(result: Any) -> Mapping[str, np.ndarray]:
    """Names what a call returned: "output", or a search's results, of a beam search those of the best hypothesis."""
    if not isinstance(result, Mapping):
        return {"output": np.asarray(result, np.float32)}
    found = {name: np.asarray(tensor) for name, tensor in result.items()}
    if "token_bwn" in found:
        return {"token_bn": found["token_bwn"][:, 0], "score_b": found["score_bw"][:, 0]}
    return found


@dataclass
class About:
    """Describes a row."""

    framework: str
    name: str = ""
    precision: str = "float32"
    peer: bool = False
    compiles: bool = False
    comparable: bool = True  # another architecture of the same sizes: timed, not compared
    ceiling: bool = False  # the matrix products only
    skips: bool = False  # with skip_padding: its rows at padding are zeros


@dataclass
class Row(About):
    """One implementation of a task. start: builds the model, when the row is run, and returns the call that is timed.

    What is compared with the reference is the output of `read` on the call's result: arrays by name, see `named`. For a training step,
    which is random, it is the result of `check`: the losses of the first steps of the problem's `checked`.
    """

    start: Callable[[], Call] = field(kw_only=True)
    read: Callable[[Any], Mapping[str, np.ndarray]] = named
    check: Callable[[], np.ndarray] | None = None


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
