"""A training run: loss and gradients, clipping, the schedule and Adam, batch after batch."""

from collections.abc import Callable, Iterator

import numpy as np

from . import (
    checks,
    decoding,
    encoder_only,
    loss,
    mask,
    optimizer,
    schedule,
    sharding,
    sites,
    transformer,
)
from . import parameters as canonical
from .arrays import Array, Gradients, Keep, Tree
from .config import TransformerConfig as Config
from .recipe import Recipe
from .strategy import Strategy

__all__ = ["Trainer"]


class Trainer:
    """Parameters and moments of one run, and the number of steps done.

    The loss is `encoder_only.classification_loss` if the config has classes, otherwise
    `transformer.training_loss`. parameters: by canonical name; their dtype, float32 or float64, is
    the run's. seed: for the random keep masks, which depend only on seed and step, so that a
    resumed run draws the same. device, compiled, mesh and recompute (of activations, in the
    backward pass) only matter in the ports; here device must be "cpu" and the mesh one device.
    group: the processes of the run. Raises ValueError if the parameters do not fit the config, or
    if the loss does not reach all of them.
    """

    def __init__(
        self,
        config: Config,
        recipe: Recipe,
        parameters: Tree,
        seed: int = 0,
        device: str = "cpu",
        compiled: bool = True,
        mesh: sharding.Mesh | None = None,
        recompute: bool = False,
    ) -> None:
        if device != "cpu":
            raise ValueError(f"device must be cpu; got {device!r}")
        if mesh is not None and mesh.devices > 1:
            raise ValueError(f"the reference computes on one device; got the mesh {mesh}")
        self.group = sharding.Group()
        config.need_objective()
        self._weights = recipe.router_weights(config)
        canonical.match(parameters, canonical.shapes(config), canonical.training_dtype(parameters))
        self.config, self.recipe, self.seed, self.steps = config, recipe, seed, 0
        values = {name: np.array(value) for name, value in parameters.items()}
        zeros = {name: np.zeros_like(value) for name, value in parameters.items()}
        state = {"parameters": values, "first_moment": zeros, "second_moment": zeros}
        self._state = canonical.flatten(state)
        self._loss: Callable[..., Array] = transformer.training_loss
        self._loss_vjp: Callable[..., Gradients] = transformer.training_loss_vjp
        if config.classes:
            self._loss = encoder_only.classification_loss
            self._loss_vjp = encoder_only.classification_loss_vjp

    def train_step(self, source: Array | None, target: Array, keep: Keep = None) -> float:
        """Makes one update from a batch of ids `b s` and `b t`; returns the loss before the update.

        source: None for a decoder-only model. target: if the config has classes, those of the rows,
        `b`. The batch is split by rows into `recipe.microbatches` parts, whose gradients are added.
        keep: keep masks by site; default, random. Raises ValueError on invalid ids and if the batch
        cannot be split; nothing changes then.
        """
        self._check(source, target)
        if keep is None:
            rng = np.random.default_rng([self.seed, self.steps])
            read = 0 if source is None else source.shape[1]
            written = 0 if self.config.classes else target.shape[1] - 1
            keep = sites.draw(self.config, len(target), read, written, rng)
        value, gradients = self._gradients(source, target, keep)
        recipe, state, step = self.recipe, canonical.nest(self._state), self.steps + 1
        if recipe.clip_norm is not None:
            gradients = optimizer.clip_global_norm(gradients, recipe.clip_norm)
        rate = float(schedule.noam(step, self.config.model_width, recipe.warmup))
        settings = recipe.beta_1, recipe.beta_2, recipe.epsilon, recipe.weight_decay
        moments = state["first_moment"], state["second_moment"]
        given = state["parameters"], gradients, *moments, step, rate
        updated = optimizer.adam(*given, *settings)
        self._state, self.steps = canonical.flatten(updated), step
        return value

    def loss(self, source: Array | None, target: Array) -> tuple[float, int]:
        """Returns the sum of -log p over counted labels, without smoothing, and their number."""
        value = self._loss(self._parameters, self.config, source, target, total=1)
        return float(value), _count(self.config, target)

    def greedy_search(self, source: Array, strategy: Strategy) -> dict[str, Array]:
        """Runs `decoding.greedy_search` on the current model."""
        return decoding.greedy_search(self._parameters, self.config, source, strategy)

    def beam_search(self, source: Array, strategy: Strategy) -> dict[str, Array]:
        """Runs `decoding.beam_search` on the current model."""
        return decoding.beam_search(self._parameters, self.config, source, strategy)

    def state(self) -> dict[str, Array]:
        """Copies the tensors `parameters.NAME`, `first_moment.NAME` and `second_moment.NAME`."""
        return dict(self.tensors())

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Yields the items of `state` one by one; on a mesh, processes hold at most one whole."""
        for name, value in self._state.items():
            yield name, np.array(value)

    def load_state(self, state: Tree, steps: int) -> None:
        """Resumes the run from this `state` after `steps` steps; ValueError lists every problem."""
        if steps < 0:
            raise ValueError(f"steps must be at least 0; got {steps}")
        shapes = {name: value.shape for name, value in self._state.items()}
        canonical.match(state, shapes, canonical.training_dtype(self._state))
        self._state, self.steps = {name: np.array(state[name]) for name in shapes}, steps

    @property
    def _parameters(self) -> Tree:
        return canonical.nest(self._state)["parameters"]

    def _check(self, source: Array | None, target: Array) -> None:
        """Raises ValueError on arrays that lack the axes of a batch."""
        checks.check_source_given(self.config.encoder_layers, source)
        if source is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)
            kind, vocabulary = str(source.dtype), self.config.source_vocabulary
            checks.check_tokens("token", source.shape, kind, vocabulary)
        check = checks.check_classes if self.config.classes else checks.check_target
        check(target.shape, str(target.dtype))

    def _gradients(self, source: Array | None, target: Array, keep: Tree) -> tuple[float, Tree]:
        """Returns the loss of the whole batch and its gradients, summed over the microbatches."""
        parts, total = self.recipe.microbatches, _count(self.config, target)
        if len(target) % parts:
            got = f"{len(target)} rows"
            raise ValueError(f"the batch must divide into {parts} microbatches; got {got}")
        value, rows, sites_ = 0.0, len(target) // parts, canonical.flatten(keep)
        summed: dict[str, Array] = {}
        for part in range(parts):
            chosen = slice(part * rows, (part + 1) * rows)
            own = None if source is None else source[chosen]
            masks = canonical.nest({site: drop[chosen] for site, drop in sites_.items()})
            loss_, gradients = self._backward(own, target[chosen], max(total, 1), masks)
            value += loss_
            summed = {name: summed[name] + g if summed else g for name, g in gradients.items()}
        return value, canonical.nest(summed)

    def _backward(
        self, source: Array | None, target: Array, total: int, keep: Tree
    ) -> tuple[float, dict[str, Array]]:
        """Returns the loss of some rows and its gradients by name, divided by the batch total."""
        batch = self._parameters, self.config, source, target, self.recipe.smoothing, total, keep
        value = self._loss(*batch, **self._weights)
        one = np.ones((), value.dtype)
        gradients = self._loss_vjp(*batch, **self._weights, cotangent=one)
        return float(value), canonical.flatten(gradients["parameters"])


def _count(config: Config, target: Array) -> int:
    """Returns the number of labels that count; every class does."""
    if config.classes:
        return len(target)
    return int(mask.token_mask(loss.teacher_forcing(target)[1], config.padding_id).sum())
