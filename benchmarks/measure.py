"""Checks rows against the truth, then times them in interleaved rounds, each framework in a process of its own."""

import importlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from rosettaformer.conformance.port import PORTS

from . import problem

__all__ = ["BOUNDS", "LOSS_BOUNDS", "PRECISIONS", "Result", "Row", "Step", "measure", "run", "training_row"]

# precision -> the largest difference from the truth, in units of the truth's largest logit. Rounding alone stays ten times below;
# a wrong mask, position or weight is far above.
BOUNDS = {"float32": 1e-4, "tf32": 2e-2, "bfloat16": 1e-1}
# The same for the losses of the first training steps.
LOSS_BOUNDS = {"float32": 1e-5, "tf32": 1e-3}
PRECISIONS = {"cpu": ("float32",), "cuda": ("float32", "tf32", "bfloat16")}
Step = Callable[[], Any]  # one update of the parameters; returns the loss before it, a scalar that float() reads when it is there
PAUSE = 0.05  # seconds, in which the threads of the row before stop spinning for work


@dataclass(frozen=True)
class Row:
    """A forward pass or a training step. `call` returns when the logits or the loss are there, and is what is timed.

    Compared with the answer is what `to_numpy` makes of them; or, of a training step, which is random, what `check` returns: the losses of
    the first steps of the problem's `checked`.
    """

    framework: str
    name: str
    call: Callable[[], Any]
    to_numpy: Callable[[Any], np.ndarray] = np.asarray
    precision: str = "float32"
    stock: bool = False
    compiles: bool = False
    check: Callable[[], np.ndarray] | None = None


def training_row(framework: str, name: str, start: Callable[[problem.Problem], Step], task: problem.Problem, **about: Any) -> Row:
    """The row of a training step. start: builds a model and its optimiser for a problem and returns the step on its one batch.

    about: what else the row is (stock, compiles, precision). Its `check` starts anew with the problem's `checked`.
    """
    step = start(task)

    def check() -> np.ndarray:
        checked = start(task.checked)
        return np.array([float(checked()) for _ in range(problem.CHECKED)])

    return Row(framework, name, lambda: float(step()), check=check, **about)


@dataclass
class Result:
    """What became of a row. status: timed; wrong (not the truth's answer); error (an exception); missing (no framework)."""

    framework: str
    name: str = ""
    precision: str = "float32"
    stock: bool = False
    status: str = "timed"
    message: str = ""
    difference: float | None = None  # from the truth, in units of its largest logit or loss
    median_ms: float | None = None
    min_ms: float | None = None
    compile_s: float | None = None
    ratio: float | None = None  # of medians, to the best stock row of the framework in the same precision


def run(
    framework: str, config: TransformerConfig, answer: Callable[[], np.ndarray], rounds: int, device: str, training: bool = False
) -> tuple[str, list[Result]]:
    """What the framework's process says of its threads and device, and a result for each of its rows: forward passes, or training steps.

    answer: of the truth, which is asked for it when framework and device are found. Raises ValueError where there is no such device.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            described, missing = process.submit(_describe, framework, device).result()
            return described, missing or process.submit(_run, framework, config, answer(), rounds, device, training).result()
        except BrokenProcessPool:
            return "", [Result(framework, status="error", message="its process ended")]


def _describe(framework: str, device: str) -> tuple[str, list[Result]]:
    """What the framework says of the device; or the result that says that there is no such framework."""
    try:
        return _peers(framework).describe(device), []
    except ModuleNotFoundError as error:
        _, package, install = PORTS[framework]
        if error.name and error.name.partition(".")[0] in (package, "keras", "flax", "optax"):
            return "", [Result(framework, status="missing", message=install)]
        raise


def _run(framework: str, config: TransformerConfig, answer: np.ndarray, rounds: int, device: str, training: bool) -> list[Result]:
    peers, task = _peers(framework), problem.make(config)
    return measure((peers.training_rows if training else peers.rows)(task, device), answer, rounds)


def _peers(framework: str) -> Any:
    return importlib.import_module(f"{__package__}.peers_{framework}")


def measure(rows: Sequence[Row], answer: np.ndarray, rounds: int) -> list[Result]:
    """Every row once against the answer; those that agree are warmed up and timed, one call of each in every round."""
    results = [_check(row, answer) for row in rows]
    good = [(row, result) for row, result in zip(rows, results, strict=True) if result.status == "timed"]
    seconds: list[list[float]] = [[] for _ in good]
    for number in range(rounds + 1):
        for (row, _), taken in zip(good, seconds, strict=True):
            time.sleep(PAUSE)
            elapsed = _time(row)
            if number:  # the first round warms up
                taken.append(elapsed)
    for (row, result), taken in zip(good, seconds, strict=True):
        result.median_ms, result.min_ms = 1e3 * statistics.median(taken), 1e3 * min(taken)
        result.compile_s = max(0.0, result.compile_s - result.median_ms / 1e3) if row.compiles and result.compile_s else None
    _compare(results)
    return results


def _check(row: Row, answer: np.ndarray) -> Result:
    """The first call, which compiles."""
    result = Result(row.framework, row.name, row.precision, row.stock)
    start = time.perf_counter()
    try:
        output = row.call()
        result.compile_s = time.perf_counter() - start
        got = row.to_numpy(output) if row.check is None else row.check()
    except Exception as error:  # one row that fails is a row of the table, not the end of the run
        result.status, result.message = "error", f"{type(error).__name__}: {error}".partition("\n")[0]
        return result
    if got.shape != answer.shape:
        result.status, result.message = "wrong", f"shape {got.shape}, must be {answer.shape}"
        return result
    bound, kind = (BOUNDS[row.precision], "logit") if row.check is None else (LOSS_BOUNDS[row.precision], "loss")
    result.difference = float(np.abs(got - answer).max() / np.abs(answer).max())
    if not result.difference <= bound:  # NaN is wrong too
        result.status = "wrong"
        result.message = f"differs from the truth by {result.difference:.1e} of its largest {kind}; at most {bound:.0e}"
    return result


def _time(row: Row) -> float:
    start = time.perf_counter()
    row.call()
    return time.perf_counter() - start


def _compare(results: Sequence[Result]) -> None:
    """Ratios of medians; NumPy has no stock layers, and stands beside torch's eager ones."""
    for result in results:
        if result.median_ms is None:
            continue
        framework, ending = ("torch", "eager") if result.framework == "numpy" else (result.framework, "")
        peers = [
            peer.median_ms
            for peer in results
            if peer.stock and peer.median_ms is not None and peer.precision == result.precision
            if peer.framework == framework and peer.name.endswith(ending)
        ]
        result.ratio = result.median_ms / min(peers) if peers else None
