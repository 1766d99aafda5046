"""Compares training runs with the reference step by step.

Every backend gets the same initial parameters, batches and keep masks.
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
START_LIMIT, TAKEN = 180.0, 600.0  # seconds to load a framework, and for a backend to read a message
# uses every option of a recipe, and changes parameters visibly within a few steps
RECIPE = PAPER.replace(warmup=100, weight_decay=0.01, clip_norm=1.0)


@dataclass(frozen=True)
class Experiment:
    """The inputs of every backend. values: initial parameters, whose dtype is that of the run."""

    config: TransformerConfig
    recipe: Recipe
    values: Mapping[str, np.ndarray]
    steps: int
    seed: int

    def batch(self, step: int) -> tuple[np.ndarray | None, np.ndarray, Mapping]:
        """Returns source `b s`, target `b t` and keep masks, which depend only on seed and step.

        With a padding id, rows have different lengths, one source is empty, and one row is all
        padding. A decoder-only model has no source. For a classifier, the target is classes `b`.
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
    """A distance from the reference and its bound, relative to the reference's largest value."""

    name: str
    distance: float
    allowed: float

    @property
    def excess(self) -> float:
        """The distance divided by its bound; above 1 the run has left the reference."""
        return self.distance / self.allowed if math.isfinite(self.distance) else math.inf


@dataclass(frozen=True)
class Step:
    """A step of a backend: its loss and gap, and the gap of the parameter closest to its bound."""

    number: int
    value: float
    loss: Gap
    parameter: Gap

    @property
    def leaves(self) -> list[Gap]:
        """The gaps that exceed their bound."""
        return [gap for gap in (self.loss, self.parameter) if gap.excess > 1]


@dataclass
class Run:
    """The outcome: `together`, `leaves`, `missing`, `error`, `crash` or `hang`, and its reason."""

    backend: str
    status: str = "together"
    message: str = ""
    steps: list[Step] = field(default_factory=list)

    @property
    def divergence(self) -> Step | None:
        """The first step with a distance beyond its bound."""
        return next((step for step in self.steps if step.leaves), None)


def compare(
    experiment: Experiment,
    backends: Sequence[str],
    compiled: bool = True,
    limit: float = 600.0,
    progress: Callable[[int], None] = lambda step: None,
) -> tuple[list[float], list[Run]]:
    """Returns the reference's losses, and the runs of all backends, each in its own process.

    limit: seconds per step; the first one compiles. progress: receives the number of each finished
    step.
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
    """Adds a step to the run, or ends the run with an error."""
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
