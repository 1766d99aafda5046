"""Training: one step of the recipe as one program."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType

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
from .programs.sharding import Processes, Sharding, mapped, name_of
from .transformer import Transformer

__all__ = ["Trainer"]


class Trainer:
    """A Transformer in training: `parameters, moments = adam(clip(gradient of the loss))` (NOAM).

    The loss is `classification_loss` if the config has classes, otherwise `training_loss` without
    padding. Forward, backward, clipping, Adam and schedule are one XLA program for each shape of a
    batch.

    The module's graph is split off once; parameters and moments are donated, so a step updates them
    in place. float64 runs under jax_enable_x64 and float32 without it, inside the methods, whatever
    the caller's setting. Random masks are a function of seed and steps only. compiled=False runs
    operation by operation. device: cpu, cuda, or cuda-tf32, whose products are TF32.
    mesh: of devices of that kind, of all processes, which make the same calls; nothing is left out
    of a batch there. recompute: the backward pass computes the activations of each layer again.
    group: the processes of the run.
    """

    axes = AxisType.Auto  # of a mesh

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
        self._searcher: Searcher | None = None  # of the present parameters
        self._sharding: Sharding | None = None
        if mesh is not None:
            self._sharding = Sharding(config, mesh, device, axes=self.axes, even=not compiled)
            self._alone = jax.jit(partial(mapped, self._sharding.alone))
        with self._context():
            outputs = self._begin(parameters, seed)
            own = config, recipe, self._sharding, recompute, outputs
            self._step = step.program(self._graph, self._random, *own)
            self._evaluate = step.evaluation(self._graph, self._random, self._sharding)

    def _begin(self, parameters: Mapping[str, np.ndarray], seed: int) -> Any:
        """Sets graph, parameters, streams and moments; returns the shardings of a step's results.

        All are committed to their devices, as those are: a second step compiles nothing.
        """
        start = step.optimizer(self.recipe, 0.0).init
        if self._sharding is None:
            model: Transformer = step.blank(self.config, self._dtype, seed)
            self._shapes = nnx.eval_shape(lambda: model)
            weights.load(model, parameters, self.config)
            self._graph, self._parameters, *self._random = nnx.split(model, *step.KINDS)
            self._moments = jax.device_put(start(self._parameters), self._device)
            return None
        canonical.match(parameters, canonical.shapes(self.config))
        self._shapes = nnx.eval_shape(lambda: step.blank(self.config, self._dtype, seed))
        self._graph, empty, *_ = nnx.split(self._shapes, *step.KINDS)
        self._random = step.streams(self.config, self._dtype, seed)
        self._parameters = self._sharding.state(empty, parameters.__getitem__)
        outputs = jax.tree.map(lambda x: x.sharding, self._parameters)
        shapes, whole = jax.eval_shape(start, self._parameters), self._sharding.at()
        of_moments = optax.tree.set(shapes, count=whole, mu=outputs, nu=outputs)
        self._moments = jax.jit(start, out_shardings=of_moments)(self._parameters)
        return outputs, of_moments, whole

    def train_step(
        self, source: Array | None, target: Array, keep: Keep | None = None
    ) -> jax.Array:
        """One update on ids `b s` and `b t`; returns the loss of the batch before it.

        The loss is still being computed. source: None for a decoder-only model. target: the classes
        of the rows, `b`, if the config has classes.
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
        """The compiled step of batches of this shape; what its devices send each other is read by
        `programs.traffic`.
        """
        with self._context():
            step: Any = self._step
            return step.lower(*self._given(source, target)).compile()

    def _given(self, source: Any, target: Any, keep: Any = None) -> tuple[Any, ...]:
        """The arguments of a step."""
        *batch, rows = self._batch(source, target, keep, self.recipe.microbatches)
        total = np.int32(max(1, step.count(self.config, target))) if rows else None
        state = self._parameters, self._moments, np.uint32(self.steps)
        return *state, *batch, total, rows

    def loss(self, source: Array | None, target: Array) -> tuple[float, int]:
        """The sum of -log p over the real labels, and their number; in evaluation, not smoothed."""
        self._check(source, target)
        with self._context():
            source_bs, target_bt, _, *more = self._batch(source, target)
            loss = self._evaluate(self._parameters, source_bs, target_bt, *more)
            return float(loss), int(step.count(self.config, target))

    def _batch(self, source: Any, target: Any, keep: Any = None, parts: int = 1) -> Any:
        """(source, target, keep, flat, rows) for the programs; rows: on a mesh those of a part."""
        if self._sharding is None:
            return source, target, keep, self.flat(source, target, parts), 0
        rows, batch = len(target), self._sharding.batch
        # A keep mask may be the same for all rows.
        placed = jax.tree.map(
            lambda x: batch(np.broadcast_to(x, (rows, *x.shape[1:])), parts), (source, target, keep)
        )
        return *placed, unpadding.Flat(), rows // parts

    def flat(self, source: Array | None, target: Array, parts: int = 1) -> unpadding.Flat:
        """The tokens that a step computes; with more than one part, of each part of the rows."""
        if self.config.classes:
            return unpadding.Flat()
        return unpadding.of_loss(self.config, self.least, source, target, parts=parts)

    def greedy_search(self, source: Array | None, strategy: Strategy) -> dict[str, np.ndarray]:
        """`Searcher.greedy_search` of the model with the present parameters."""
        return self._found("greedy_search", source, strategy)

    def beam_search(self, source: Array | None, strategy: Strategy) -> dict[str, np.ndarray]:
        """`Searcher.beam_search` of the model with the present parameters."""
        return self._found("beam_search", source, strategy)

    def state(self) -> dict[str, np.ndarray]:
        """Copies, by canonical name below `parameters`, `first_moment` and `second_moment`."""
        return dict(self.tensors())

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """The items of `state`, one by one: on a mesh, no process holds more than one whole."""
        trees = {"parameters": self._parameters} | moments(self._moments)
        for kind, tree in trees.items():
            arrays = {name_of(path): array for path, array in jax.tree.leaves_with_path(tree)}
            for name in canonical.shapes(self.config):
                with self._context():
                    array = self._whole(name, arrays[name])
                yield f"{kind}.{name}", array

    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None:
        """Continues from a `state` that was taken after these steps; on a mesh each process reads
        its own parts.

        Raises one ValueError that lists all problems, and changes nothing then.
        """
        if steps < 0:
            raise ValueError(f"steps must be at least 0; got {steps}")
        kinds = ("parameters", "first_moment", "second_moment")
        shapes = {
            f"{kind}.{name}": shape
            for kind in kinds
            for name, shape in canonical.shapes(self.config).items()
        }
        canonical.match(state, shapes, str(self._dtype))
        with self._context():
            self._parameters, *both = (self._loaded(state, kind) for kind in kinds)
            if self._sharding is None:
                moments = with_moments(self._moments, jnp.asarray(steps, jnp.int32), *both)
                self._moments = jax.device_put(moments, self._device)
            else:
                count = self._sharding.constant(np.asarray(steps, np.int32))
                self._moments = with_moments(self._moments, count, *both)
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
        """By a searcher of the present parameters, which are copied once after each change."""
        with self._context():
            if self._searcher is None:
                self._searcher = Searcher(self._module(self._parameters), compiled=self._compiled)
            return {
                name: weights.to_numpy(array)
                for name, array in getattr(self._searcher, search)(source, strategy).items()
            }

    def _loaded(self, state: Mapping[str, np.ndarray], kind: str) -> nnx.State:
        if self._sharding is not None:
            return self._sharding.state(self._parameters, lambda name: state[f"{kind}.{name}"])
        module = self._module(self._parameters)
        weights.load(
            module,
            {name: state[f"{kind}.{name}"] for name in canonical.shapes(self.config)},
            self.config,
        )
        return nnx.state(module, nnx.Param)

    def _whole(self, name: str, array: jax.Array) -> np.ndarray:
        if self._sharding is None:
            return weights.to_numpy(array)
        return self._sharding.whole(name, array)

    def _module(self, parameters: nnx.State) -> Transformer:
        if self._sharding is not None:
            parameters = self._alone(parameters)
        return nnx.merge(self._graph, parameters, *self._random, copy=True)

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        with (
            framework.device_context(self._name, self._dtype.name),
            contextlib.nullcontext() if self._compiled else jax.disable_jit(),
        ):
            yield


def with_moments(state: Any, steps: Any, first_moment: Any, second_moment: Any) -> Any:
    """An optimiser's state after these steps, an int32, with these moments."""
    return optax.tree.set(state, count=steps, mu=first_moment, nu=second_moment)


def moments(state: Any) -> dict[str, Any]:
    """The moments in an optimiser's state."""
    return {
        "first_moment": optax.tree.get(state, "mu"),
        "second_moment": optax.tree.get(state, "nu"),
    }
