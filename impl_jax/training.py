"""A training run: loss and gradients, clipping, the schedule and Adam, batch after batch."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, SingleDeviceSharding

from reference_numpy import TransformerConfig, checks
from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Group, Mesh
from reference_numpy.strategy import Strategy

from . import framework, weights
from .decoding import Searcher
from .dropout import Keep
from .framework import Array
from .programs import step, unpadding
from .programs.sharding import Processes, Sharding, mapped, named
from .programs.split_experts import with_split_experts
from .transformer import Transformer

__all__ = ["Trainer"]


class Trainer:
    """Parameters and moments of one run, and the number of steps done.

    The loss is `classification_loss` if the config has classes, otherwise `training_loss` without
    padding. Forward, backward, clipping, Adam and schedule are one XLA program per batch shape,
    which takes parameters and moments by donation. float64 runs under jax_enable_x64 and float32
    without it, whatever the caller's setting. Random masks depend only on seed and step.
    compiled=False: runs op by op. device: cpu, cuda, or cuda-tf32, whose products are TF32.

    mesh: devices of that kind, over all processes, which make the same calls; padding is kept
    there. recompute: recomputes each layer's activations in the backward pass. group: the processes
    of the run.
    """

    axes = AxisType.Auto  # of the mesh axes

    def __init__(
        self,
        config: TransformerConfig,
        recipe: Recipe,
        parameters: Mapping[str, np.ndarray],
        seed: int = 0,
        device: str = "cpu",
        compiled: bool = True,
        mesh: Mesh | None = None,
        recompute: bool = False,
    ) -> None:
        config.need_objective()
        self.config, self.recipe, self.steps, self.least = config, recipe, 0, unpadding.LEAST
        self.group: Group = Group() if mesh is None else Processes()
        self._dtype = np.dtype(canonical.training_dtype(parameters))
        self._device, self._name, self._compiled = framework.device(device), device, compiled
        self._searcher: Searcher | None = None  # holds the current parameters
        self._sharding: Sharding | None = None
        if mesh is not None:
            self._sharding = Sharding(config, mesh, device, axes=self.axes, even=not compiled)
            self._alone = jax.jit(partial(mapped, self._sharding.alone))
        canonical.match(parameters, canonical.shapes(config))
        with self._context():
            self._shapes = nnx.eval_shape(
                lambda: Transformer(config, param_dtype=self._dtype, rngs=nnx.Rngs(seed))
            )
            self._graph, self._empty, *_ = nnx.split(self._shapes, nnx.Param, ...)
            self._random = step.streams(config, self._dtype, seed)
            self._parameters = self._state(parameters)
            outputs = self._begin()
            self._step = step.program(
                self._graph, self._random, config, recipe, self._sharding, recompute, outputs
            )
            self._evaluate = step.evaluation(self._graph, self._random, self._sharding)

    def _begin(self) -> tuple[nnx.State, optax.OptState, jax.sharding.Sharding]:
        """Initializes the moments; returns the shardings of a step's results.

        All are committed to their devices, like the results, so that the second step compiles
        nothing.
        """
        start = step.optimizer(self.recipe, 0.0).init
        whole = self._sharding.at() if self._sharding else SingleDeviceSharding(self._device)
        outputs = jax.tree.map(lambda x: x.sharding, self._parameters)
        shapes = jax.eval_shape(start, self._parameters)
        of_moments = optax.tree.set(shapes, count=whole, mu=outputs, nu=outputs)
        self._moments = jax.jit(start, out_shardings=of_moments)(self._parameters)
        return outputs, of_moments, whole

    def train_step(
        self, source: Array | None, target: Array, keep: Keep | None = None
    ) -> jax.Array:
        """Makes one update from a batch of ids `b s` and `b t`; returns the loss before the update.

        The device may still be computing the loss. source: None for a decoder-only model. target:
        if the config has classes, those of the rows, `b`.
        """
        self._check(source, target)
        rows, parts = len(target), self.recipe.microbatches
        if rows % parts:
            raise ValueError(f"the batch must divide into {parts} microbatches; got {rows} rows")
        self._searcher = None
        with self._context():
            self._parameters, self._moments, loss = self._step(*self._given(source, target, keep))
        self.steps += 1
        return loss

    def program(self, source: Array | None, target: Array) -> jax.stages.Compiled:
        """Returns the compiled step for this batch shape; `programs.traffic` shows its traffic."""
        with self._context():
            return self._step.lower(*self._given(source, target)).compile()

    def _given(
        self, source: Array | None, target: Array, keep: Keep | None = None
    ) -> tuple[Any, ...]:
        """Returns the arguments of a step."""
        batch, rows = self._batch(source, target, keep, self.recipe.microbatches)
        total = np.int32(max(1, step.count(self.config, target))) if rows else None
        return self._parameters, self._moments, np.uint32(self.steps), batch, total, rows

    def loss(self, source: Array | None, target: Array) -> tuple[float, int]:
        """Returns the sum of -log p over counted labels, without smoothing, and their number."""
        self._check(source, target)
        with self._context():
            batch, rows = self._batch(source, target)
            loss = self._evaluate(self._parameters, batch.source, batch.target, batch.flat, rows)
            return float(loss), int(step.count(self.config, target))

    def _batch(
        self, source: Any, target: Any, keep: Keep | None = None, parts: int = 1
    ) -> tuple[step.Batch, int]:
        """Returns the programs' batch and, on a mesh, the rows of a part."""
        if self._sharding is None:
            return step.Batch(source, target, keep, self.flat(source, target, parts)), 0
        rows, placed = len(target), self._sharding.batch
        # A keep mask may be the same for all rows.
        batch = jax.tree.map(
            lambda x: placed(np.broadcast_to(x, (rows, *x.shape[1:])), parts),
            step.Batch(source, target, keep),
        )
        return batch, rows // parts

    def flat(self, source: Array | None, target: Array, parts: int = 1) -> unpadding.Flat:
        """Returns the tokens that a step computes; with several parts, those of each part."""
        if self.config.classes:
            return unpadding.Flat()
        weights = self.recipe.router_weights(self.config)
        return unpadding.of_loss(self.config, self.least, source, target, parts=parts, **weights)

    def greedy_search(self, source: Array | None, strategy: Strategy) -> dict[str, np.ndarray]:
        """Runs `Searcher.greedy_search` on the current model."""
        return self._found("greedy_search", source, strategy)

    def beam_search(self, source: Array | None, strategy: Strategy) -> dict[str, np.ndarray]:
        """Runs `Searcher.beam_search` on the current model."""
        return self._found("beam_search", source, strategy)

    def state(self) -> dict[str, np.ndarray]:
        """Copies the tensors `parameters.NAME`, `first_moment.NAME` and `second_moment.NAME`."""
        return dict(self.tensors())

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the items of `state` one by one; on a mesh, processes hold at most one whole."""
        trees = {"parameters": self._parameters} | moments(self._moments)
        for kind, tree in trees.items():
            arrays = named(tree)
            for name in canonical.shapes(self.config):
                own, x = self._sharding, arrays[name]
                with self._context():
                    array = own.whole(name, x) if own else weights.to_numpy(x)
                yield f"{kind}.{name}", array

    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None:
        """Resumes the run from this `state` after `steps` steps; ValueError lists every problem.

        On a mesh each process reads its own parts. Nothing changes if there is a problem.
        """
        if steps < 0:
            raise ValueError(f"steps must be at least 0; got {steps}")
        kinds = ("parameters", "first_moment", "second_moment")
        shapes = canonical.shapes(self.config).items()
        expected = {f"{kind}.{name}": shape for kind in kinds for name, shape in shapes}
        canonical.match(state, expected, str(self._dtype))
        with self._context():
            self._parameters, first, second = (self._state(state, f"{kind}.") for kind in kinds)
            whole = optax.tree.get(self._moments, "count").sharding
            count = jax.make_array_from_callback((), whole, lambda _: np.asarray(steps, np.int32))
            self._moments = optax.tree.set(self._moments, count=count, mu=first, nu=second)
        self.steps, self._searcher = steps, None

    def _check(self, source: Array | None, target: Array) -> None:
        checks.check_source_given(self.config.encoder_layers, source)
        if source is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)
        if self.config.classes:
            self._shapes.check_ids(source, label_b=target)
        else:
            checks.check_target(target.shape, str(target.dtype))
            self._shapes.check_ids(source, target)

    def _found(
        self, search: str, source: Array | None, strategy: Strategy
    ) -> dict[str, np.ndarray]:
        """Searches with the current parameters, which are copied once after each change."""
        with self._context():
            if self._searcher is None:
                whole = self._alone(self._parameters) if self._sharding else self._parameters
                model = nnx.merge(self._graph, whole, *self._random, copy=True)
                if self._sharding is not None:
                    model = with_split_experts(model, self._sharding)
                self._searcher = Searcher(model, compiled=self._compiled)
            found = getattr(self._searcher, search)(source, strategy)
            return {name: weights.to_numpy(array) for name, array in found.items()}

    def _state(self, arrays: Mapping[str, np.ndarray], start: str = "") -> nnx.State:
        """Returns parameters, or moments, from arrays by name. start: prefix of the names."""
        if self._sharding is not None:
            return self._sharding.state(self._empty, lambda name: arrays[start + name])
        own = partial(weights.from_numpy, device=self._device)
        return mapped(lambda name, _: own(arrays[start + name]), self._empty)

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        with (
            framework.device_context(self._name, self._dtype.name),
            contextlib.nullcontext() if self._compiled else jax.disable_jit(),
        ):
            yield


def moments(state: optax.OptState) -> dict[str, optax.Updates]:
    """Returns the moments in an optimizer state."""
    return {
        "first_moment": optax.tree.get(state, "mu"),
        "second_moment": optax.tree.get(state, "nu"),
    }
