"""Trains the implementations for a few steps on the same batches as the float64 reference."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.training import Trainer

from ...judge.expectation.components import DROPOUT_RATES
from ...judge.expectation.orders import shuffled
from ...judge.expectation.tolerance import ORDERS, SHUFFLES, Expectation, expectation, in_orders
from .subject import LARGE, Subject, random_ids
from .trainee import trained

RECIPE = PAPER.replace(smoothing=0.0, warmup=100)
FEW = 2  # summation orders of a large model, whose steps take the reference many seconds
ROWS = 4  # rows of a batch of random tokens
CLASSES = 2  # number of classes of a new classifier

Batch = tuple[np.ndarray | None, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """A short training run: config, float32 parameters, recipe, and the batches (source, target).

    notes: choices made. learns: whether the batches can be learned; with random tokens and classes,
    only the gradients are meaningful.
    """

    config: TransformerConfig
    values: Mapping[str, np.ndarray]
    recipe: Recipe
    batches: Sequence[Batch]
    notes: Sequence[str]
    learns: bool

    @property
    def sent(self) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Any]]:
        """Config, parameters and recipe, as arguments of a trainee."""
        return self.config.to_dict(), dict(self.values), self.recipe.to_dict()


@dataclass
class Curves:
    """Losses and gradient norms by step.

    losses, norms: the reference's, with tolerances. found: (loss, gradient norm) by implementation.
    learns: see `Plan`.
    """

    losses: list[Expectation]
    norms: list[Expectation]
    orders: int
    found: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    learns: bool = True

    def units(self, name: str) -> list[tuple[float, float]]:
        """Returns the errors of each loss and norm of an implementation, in units of the noise."""
        pairs = zip(self.found[name], self.losses, self.norms, strict=True)
        return [(_units(loss, one), _units(norm, two)) for (loss, norm), one, two in pairs]


def _units(value: float, expected: Expectation) -> float:
    return abs(value - float(expected.reference)) / expected.plain_error


def plan(subject: Subject, steps: int, seed: int) -> Plan:
    """Returns a plan that trains on the text, or on new random tokens at every step."""
    config, values, notes = _learner(subject, seed)
    config = config.replace(**dict.fromkeys(DROPOUT_RATES, 0.0))
    rng = np.random.default_rng([seed, 1])
    notes.append("float32 without dropout and label smoothing, Adam with the paper's schedule and 100 warm-up steps")
    ids = {side: array for side, array in subject.inputs.items() if side in ("source", "target")}
    of_text = bool(subject.texts) and bool(config.classes or ids["target"].shape[1] > 1)
    if of_text:
        notes.append("every batch is the text")
        batches = [_batch(config, ids, rng)] * steps
    else:  # a target with one token has no label
        notes.append(f"every batch has {ROWS} rows of random tokens (seed {seed})")
        shapes = {side: (ROWS, max(2, array.shape[1])) for side, array in ids.items()}
        random = ({side: random_ids(config, side, shape, rng) for side, shape in shapes.items()} for _ in range(steps))
        batches = [_batch(config, each, rng) for each in random]
    return Plan(config, values, RECIPE, batches, notes, of_text and not config.classes)


def _learner(subject: Subject, seed: int) -> tuple[TransformerConfig, dict[str, np.ndarray], list[str]]:
    """Returns config, parameters and notes of a model with a loss, if need be a new classifier."""
    config, notes = subject.config, []
    if not config.decoder_layers and (not config.classes or config.masked_language_head):
        notes.append(f"the checkpoint has no loss, so its encoder gets a new classifier with {config.classes or CLASSES} classes")
        config = config.replace(masked_language_head=False, pooler=True, classes=config.classes or CLASSES)
    if config.classes:
        notes.append("the class labels are random")
    fresh = parameters.initialise(config, seed, np.float32)
    return config, {name: np.asarray(subject.parameters.get(name, array), np.float32) for name, array in fresh.items()}, notes


def _batch(config: TransformerConfig, ids: Mapping[str, np.ndarray], rng: np.random.Generator) -> Batch:
    source = ids.get("source")
    if config.classes and source is not None:
        return source, rng.integers(0, config.classes, len(source))
    return source, ids["target"]


def reference(plan: Plan, progress: Callable[[str], None]) -> Curves:
    """Runs the reference in float64, and in float32 in several orders; returns the curves."""
    large = sum(array.size for array in plan.values.values()) >= LARGE
    orders = [*ORDERS.values()][:FEW] if large else [*ORDERS.values(), *map(shuffled, range(SHUFFLES))]
    progress("training: the reference in float64")
    exact = _run(dataclasses.replace(plan, values={name: array.astype(np.float64) for name, array in plan.values.items()}))
    progress(f"training: the reference in {len(orders)} orders")
    runs = [run.astype(np.float32) for run in in_orders(lambda: _run(plan), orders)]
    losses, norms = (
        [expectation(np.asarray(value), [np.asarray(run[step, kind]) for run in runs]) for step, value in enumerate(exact[:, kind])]
        for kind in (0, 1)
    )
    return Curves(losses, norms, len(orders), notes=plan.notes, learns=plan.learns)


def _run(plan: Plan) -> np.ndarray:
    """Returns the loss and gradient norm of every step of the reference."""
    return np.array(trained(Trainer(plan.config, plan.recipe, plan.values), plan.recipe, plan.batches))
