"""Training: one step of the recipe as one program."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from reference_numpy import TransformerConfig, checks
from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.strategy import Strategy

from . import framework, weights
from .decoding import Searcher
from .dropout import Keep
from .programs import step, unpadding
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
    """

    def __init__(
        self,
        config: TransformerConfig,
        recipe: Recipe,
        parameters: Mapping[str, np.ndarray],
        seed: int = 0,
        device: str = "cpu",
        compiled: bool = True,
    ) -> None:
        config.need_objective()
        self.config, self.recipe, self.steps, self.least = config, recipe, 0, unpadding.LEAST
        self._dtype = np.dtype(canonical.training_dtype(parameters))
        self._device, self._name, self._compiled = framework.device(device), device, compiled
        self._searcher: Searcher | None = None  # of the present parameters
        with self._context():
            model: Transformer = step.blank(config, self._dtype, seed)
            self._shapes = nnx.eval_shape(lambda: model)
            weights.load(model, parameters, config)
            self._graph, self._parameters, *self._random = nnx.split(
                model, nnx.Param, nnx.RngCount, nnx.RngKey
            )
            # Committed to the device, as the step's results are: its second call compiles nothing.
            moments = step.optimizer(recipe, 0.0).init(self._parameters)
            self._moments = jax.device_put(moments, self._device)
            self._step = step.program(self._graph, self._random, config, recipe)
            self._evaluate = step.evaluation(self._graph, self._random)

    def train_step(self, source: Any, target: Any, keep: Keep | None = None) -> jax.Array:
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
            batch = source, target, keep, self.flat(source, target, parts)
            self._parameters, self._moments, loss = self._step(
                self._parameters, self._moments, np.uint32(self.steps), *batch
            )
        self.steps += 1
        return loss

    def loss(self, source: Any, target: Any) -> tuple[float, int]:
        """The sum of -log p over the real labels, and their number; in evaluation, not smoothed."""
        self._check(source, target)
        with self._context():
            flat = self.flat(source, target)
            loss = self._evaluate(self._parameters, source, target, flat)
            return float(loss), int(step.count(self.config, target))

    def flat(self, source: Any, target: Any, parts: int = 1) -> unpadding.Flat:
        """The tokens that a step computes; with more than one part, of each part of the rows."""
        if self.config.classes:
            return unpadding.Flat()
        return unpadding.of_loss(self.config, self.least, source, target, parts=parts)

    def greedy_search(self, source: Any, strategy: Strategy) -> dict[str, np.ndarray]:
        """`Searcher.greedy_search` of the model with the present parameters."""
        return self._found("greedy_search", source, strategy)

    def beam_search(self, source: Any, strategy: Strategy) -> dict[str, np.ndarray]:
        """`Searcher.beam_search` of the model with the present parameters."""
        return self._found("beam_search", source, strategy)

    def state(self) -> dict[str, np.ndarray]:
        """Copies, by canonical name below `parameters`, `first_moment` and `second_moment`."""
        with self._context():
            trees = {"parameters": self._parameters} | moments(self._moments)
            exported = {
                kind: weights.export(self._module(tree), self.config)
                for kind, tree in trees.items()
            }
        return canonical.flatten(exported)

    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None:
        """Continues from a `state` that was taken after these steps.

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
            self._parameters, first, second = (self._loaded(state, kind) for kind in kinds)
            self._moments = jax.device_put(
                with_moments(self._moments, steps, first, second), self._device
            )
        self.steps, self._searcher = steps, None

    def _check(self, source: Any, target: Any) -> None:
        checks.check_source_given(self.config.encoder_layers, source)
        if source is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)
        if self.config.classes:
            self._shapes.check_ids(source, label_b=target)
        else:
            checks.check_target(target.shape, str(target.dtype))
            self._shapes.check_ids(source, target)

    def _found(self, search: str, source: Any, strategy: Strategy) -> dict[str, np.ndarray]:
        """By a searcher of the present parameters, which are copied once after each change."""
        with self._context():
            if self._searcher is None:
                self._searcher = Searcher(self._module(self._parameters), compiled=self._compiled)
            return {
                name: weights.to_numpy(array)
                for name, array in getattr(self._searcher, search)(source, strategy).items()
            }

    def _loaded(self, state: Mapping[str, np.ndarray], kind: str) -> nnx.State:
        module = self._module(self._parameters)
        weights.load(
            module,
            {name: state[f"{kind}.{name}"] for name in canonical.shapes(self.config)},
            self.config,
        )
        return nnx.state(module, nnx.Param)

    def _module(self, parameters: nnx.State) -> Transformer:
        return nnx.merge(self._graph, parameters, *self._random, copy=True)

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        with (
            framework.device_context(self._name, self._dtype.name),
            contextlib.nullcontext() if self._compiled else jax.disable_jit(),
        ):
            yield


def with_moments(state: Any, steps: int, first_moment: Any, second_moment: Any) -> Any:
    """An optimiser's state after these steps, with these moments."""
    return optax.tree.set(
        state, count=jnp.asarray(steps, jnp.int32), mu=first_moment, nu=second_moment
    )


def moments(state: Any) -> dict[str, Any]:
    """The moments in an optimiser's state."""
    return {
        "first_moment": optax.tree.get(state, "mu"),
        "second_moment": optax.tree.get(state, "nu"),
    }
