"""Compares training runs: every backend starts equal, gets the same batches and keep masks, and is compared with the reference at each
step.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reference_numpy import TransformerConfig, parameters, sites
from reference_numpy.recipe import PAPER, Recipe

from ...common.processes import cores
from ...judge.expectation.tolerance import Expectation
from .envelope import LOSS, Envelope
from .remote import Remote

ROWS, SOURCE, TARGET = 7, 11, 13
START_LIMIT, TAKEN = 180.0, 600.0  # seconds for a framework to load, and for a backend to read a question
# uses every choice of a recipe, and moves parameters visibly within a few steps
RECIPE = PAPER.replace(warmup=100, weight_decay=0.01, clip_norm=1.0)


@dataclass(frozen=True)
class Experiment:
    """What every backend is given. values: the initial parameters, whose dtype, float32 or float64, is the run's."""

    config: TransformerConfig
    recipe: Recipe
    values: Mapping[str, np.ndarray]
    steps: int
    seed: int

    def batch(self, step: int) -> tuple[np.ndarray | None, np.ndarray, Mapping]:
        """Returns source `b s`, target `b t` and keep masks of a step, a function of the seed and the step only.

        If the config has a padding id, rows end raggedly, one source is empty, and one row is padding throughout. A decoder-only model has
        no source; if the config has classes, they are the target, `b`.
        """
        rng = np.random.default_rng((self.seed, step))
        parts = self.recipe.microbatches
        rows = -(-ROWS // parts) * parts
        padding_id = self.config.padding_id
        lengths = [rng.integers(least, most + 1, rows) for least, most in ((1, SOURCE), (3, TARGET))]
        for length, most, empty in ((lengths[0], SOURCE, (1, 2)), (lengths[1], TARGET, (2,))):
            length[0] = most
            length[list(empty)] = 0
        vocabularies = self.config.source_vocabulary, self.config.target_vocabulary
        source, target = (
            _ids(rng, length, most, size, padding_id) for length, most, size in zip(lengths, (SOURCE, TARGET), vocabularies, strict=True)
        )
        if self.config.classes:
            target = rng.integers(0, self.config.classes, rows)
        keep = sites.draw(self.config, rows, SOURCE, TARGET - 1, rng)
        return source if self.config.encoder_layers else None, target, keep


def _ids(rng: np.random.Generator, lengths: np.ndarray, most: int, vocabulary: int, padding_id: int | None) -> np.ndarray:
    ids = rng.integers(0, vocabulary, (len(lengths), most))
    if padding_id is None:
        return ids
    ids = np.where(ids == padding_id, (padding_id + 1) % vocabulary, ids)
    return np.where(np.arange(most) < lengths[:, None], ids, padding_id)


@dataclass(frozen=True)
class Gap:
    """The distance of a loss or a parameter from the reference's and its bound, both relative to the reference's largest value, or to 1."""

    name: str
    distance: float
    allowed: float

    @property
    def excess(self) -> float:
        """The distance divided by its bound: beyond 1 the run has left the reference."""
        return self.distance / self.allowed if math.isfinite(self.distance) else math.inf


@dataclass(frozen=True)
class Step:
    """One step of a backend: its loss, the gap of the loss, and the gap of the parameter that uses the largest share of its bound."""

    number: int
    value: float
    loss: Gap
    parameter: Gap

    @property
    def leaves(self) -> list[Gap]:
        """Whether a distance exceeds its bound."""
        return [gap for gap in (self.loss, self.parameter) if gap.excess > 1]


@dataclass
class Run:
    """The outcome of a backend: `together`, `leaves`, `missing`, `error`, `crash` or `hang`, with the reason of the last four."""

    backend: str
    status: str = "together"
    message: str = ""
    steps: list[Step] = field(default_factory=list)

    @property
    def divergence(self) -> Step | None:
        """The first step at which a distance exceeds its bound."""
        return next((step for step in self.steps if step.leaves), None)


def compare(
    experiment: Experiment,
    backends: Sequence[str],
    compiled: bool = True,
    limit: float = 600.0,
    progress: Callable[[int], None] = lambda step: None,
) -> tuple[list[float], list[Run]]:
    """Returns the reference's losses and the run of every backend, each in its own process while the reference computes here.

    limit: seconds for one step; the first one compiles. progress: called with the number of every finished step.
    """
    runs = [Run(backend) for backend in backends]
    losses = []
    with contextlib.ExitStack() as stack:
        threads = max(1, cores() // max(1, len(backends)))
        remotes = [stack.enter_context(contextlib.closing(Remote(backend, threads))) for backend in backends]
        active = [*zip(runs, remotes, strict=True)]
        _begin(active, experiment, compiled, limit)
        envelope = Envelope(experiment.config, experiment.recipe, experiment.values)
        for number in range(1, experiment.steps + 1):
            active = [pair for pair in active if pair[0].status == "together"]
            batch = experiment.batch(number)
            for _, remote in active:
                remote.ask("step", *batch, limit=TAKEN)
            allowed = envelope.step(*batch)
            losses.append(float(allowed[LOSS].reference))
            for run, remote in active:
                _record(run, remote.answer(limit), number, allowed, envelope.dtype)
            progress(number)
    for run in runs:
        if run.divergence:
            run.status = "leaves"
    return losses, runs


def _begin(active: Sequence[tuple[Run, Remote]], experiment: Experiment, compiled: bool, limit: float) -> None:
    """Loads every backend and builds its trainer."""
    arguments = experiment.config.to_dict(), experiment.recipe.to_dict(), experiment.values, experiment.seed, "cpu", compiled
    for seconds, question in ((START_LIMIT, True), (limit, False)):
        for run, remote in active:
            if run.status == "together":
                kind, reason = remote.answer(seconds)
                if kind != "ready":
                    run.status, run.message = kind, reason
                elif question:
                    remote.ask("build", *arguments, limit=TAKEN)


def _record(run: Run, answer: tuple, number: int, allowed: Mapping[str, Expectation], dtype: str) -> None:
    """Adds a step to the run, or ends it with what went wrong."""
    kind, got = answer
    if kind != "step":
        run.status, run.message = kind, got
        return
    value, arrays = got
    shapes = {name: part.reference.shape for name, part in allowed.items() if name != LOSS}
    if problems := [*parameters.mismatches(arrays, shapes, dtype)]:
        run.status, run.message = "error", f"after step {number}: " + "; ".join(problems)
        return
    gaps = [_gap(name, allowed[name], arrays[name]) for name in shapes]
    run.steps.append(Step(number, value, _gap(LOSS, allowed[LOSS], np.asarray(value)), max(gaps, key=lambda gap: gap.excess)))


def _gap(name: str, allowed: Expectation, got: np.ndarray) -> Gap:
    distance, scale = np.abs(got.astype(np.float64) - allowed.reference).max(), float(np.abs(allowed.reference).max()) or 1.0
    return Gap(name, float(distance) / scale, allowed.bound / scale)
