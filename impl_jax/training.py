"""Training: one step of the recipe as one program."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
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
from .dropout import Tree
from .fast.packing import PACK_FROM, Packings, of_loss
from .mask import token_mask
from .optimizer import adam, clip_global_norm
from .schedule import noam
from .transformer import Transformer

__all__ = ["Trainer"]


class Trainer:
    """A Transformer in training: `parameters, moments = adam(clip(gradient of the loss))`, at the rate of `noam`.

    The loss is `classification_loss` where the config has classes, otherwise `training_loss`.
    Forward, backward, clipping, Adam and schedule are one XLA program for each shape of a batch.

    The module's graph is split off here, once; parameters and moments are donated, so a step updates them in place. float64 runs under
    jax_enable_x64 and float32 without it, inside the methods, whatever the caller's setting. Random masks come from the module's own
    streams, whose counts are set from the number of steps: they are a function of seed and steps alone. compiled=False runs operation
    by operation. device: cpu, cuda, or cuda-tf32, whose products are TF32.
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
        self.config, self.recipe, self.steps, self.pack_from = config, recipe, 0, PACK_FROM
        self._dtype = np.dtype(canonical.training_dtype(parameters))
        self._device, self._name, self._compiled = framework.device(device), device, compiled
        self._searcher: Searcher | None = None  # of the parameters as they are now
        with self._settings():
            model: Transformer = _blank(config, self._dtype, seed)
            self._shapes = nnx.eval_shape(lambda: model)
            weights.load(model, parameters, config)
            self._graph, self._parameters, *self._random = nnx.split(
                model, nnx.Param, nnx.RngCount, nnx.RngKey
            )
            # Committed to the device, as what the step returns is: otherwise its second call would compile anew.
            self._moments = jax.device_put(
                _optimizer(recipe, 0.0).init(self._parameters), self._device
            )
            self._step = jax.jit(
                _step(self._graph, self._random, config, recipe), donate_argnums=(0, 1)
            )
            self._evaluate = jax.jit(functools.partial(_evaluate, self._graph, self._random))

    def train_step(self, source: Any, target: Any, keep: Tree | None = None) -> jax.Array:
        """One update on ids `b s` and `b t`; returns the loss of the batch before it, which is still being computed.

        source: None of a decoder alone. target: where the config has classes, those of the rows, `b`.
        """
        self._check(source, target)
        if len(target) % self.recipe.microbatches:
            raise ValueError(
                f"the batch must divide into {self.recipe.microbatches} microbatches; got {len(target)} rows"
            )
        self._searcher = None
        with self._settings():
            arguments = (
                np.uint32(self.steps),
                source,
                target,
                keep,
                self._packings(source, target, self.recipe.microbatches),
            )
            self._parameters, self._moments, loss = self._step(
                self._parameters, self._moments, *arguments
            )
        self.steps += 1
        return loss

    def loss(self, source: Any, target: Any) -> tuple[float, int]:
        """The sum of -log p over the real labels, in evaluation mode and without smoothing, and their number."""
        self._check(source, target)
        with self._settings():
            loss = self._evaluate(self._parameters, source, target, self._packings(source, target))
            return float(loss), int(_count(self.config, target))

    def greedy_search(self, source: Any, strategy: Strategy) -> dict[str, np.ndarray]:
        """`Searcher.greedy_search` of the model as it is now."""
        return self._found("greedy_search", source, strategy)

    def beam_search(self, source: Any, strategy: Strategy) -> dict[str, np.ndarray]:
        """`Searcher.beam_search` of the model as it is now."""
        return self._found("beam_search", source, strategy)

    def state(self) -> dict[str, np.ndarray]:
        """Copies: `parameters.<canonical name>`, `first_moment.<canonical name>`, `second_moment.<canonical name>`."""
        with self._settings():
            trees = {"parameters": self._parameters} | moments(self._moments)
            exported = {
                kind: weights.export(self._module(tree), self.config)
                for kind, tree in trees.items()
            }
        return canonical.flatten(exported)

    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None:
        """Continues where `state` was taken, after so many steps.

        Raises one ValueError that lists all problems; nothing is then changed.
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
        with self._settings():
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

    def _packings(self, source: Any, target: Any, parts: int = 1) -> Packings:
        return Packings() if self.config.classes else of_loss(self, source, target, parts=parts)

    def _found(self, search: str, source: Any, strategy: Strategy) -> dict[str, np.ndarray]:
        """By the searcher of the parameters as they are now, which are copied once after each change."""
        with self._settings():
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
    def _settings(self) -> Iterator[None]:
        with (
            framework.settings(self._name, self._dtype.name),
            contextlib.nullcontext() if self._compiled else jax.disable_jit(),
        ):
            yield


def with_moments(state: Any, steps: int, first_moment: Any, second_moment: Any) -> Any:
    """An optimiser's state as it is after so many steps with these moments."""
    return optax.tree.set(
        state, count=jnp.asarray(steps, jnp.int32), mu=first_moment, nu=second_moment
    )


def moments(state: Any) -> dict[str, Any]:
    """The moments in an optimiser's state."""
    return {
        "first_moment": optax.tree.get(state, "mu"),
        "second_moment": optax.tree.get(state, "nu"),
    }


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _blank(config: TransformerConfig, dtype: np.dtype, seed: int) -> Transformer:
    """A model of zeros with the random streams of the seed: a program does not compute the random parameters that it does not return."""
    model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
    nnx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param)))
    return model


def _optimizer(recipe: Recipe, learning_rate: Any) -> optax.GradientTransformationExtraArgs:
    return adam(learning_rate, recipe.beta_1, recipe.beta_2, recipe.epsilon, recipe.weight_decay)


def _step(
    graph: Any, random: list[Any], config: TransformerConfig, recipe: Recipe
) -> Callable[..., Any]:
    """The program of a step: (parameters, moments, steps, source, target, keep, packings) -> (parameters, moments, loss)."""
    counts, keys = random

    def step(
        parameters: nnx.State,
        moments: Any,
        steps: jax.Array,
        source: jax.Array,
        target: jax.Array,
        keep: Tree | None,
        packings: Packings,
    ) -> Any:
        total = jnp.maximum(_count(config, target), 1)

        def loss(
            parameters: nnx.State,
            draw: jax.Array,
            source: jax.Array,
            target: jax.Array,
            keep: Tree | None,
            packings: Packings,
        ) -> jax.Array:
            model = nnx.merge(
                graph, parameters, jax.tree.map(lambda _: jnp.asarray(draw), counts), keys
            )
            return _objective(model)(
                source, target, recipe.smoothing, total, keep, **_packed(packings)
            )

        value_and_grad, batch = jax.value_and_grad(loss), (source, target, keep)
        value, gradients = _accumulated(
            value_and_grad, parameters, steps, batch, packings, recipe.microbatches
        )
        if recipe.clip_norm is not None:
            gradients = clip_global_norm(gradients, recipe.clip_norm)
        rate = noam(steps + 1, config.model_width, recipe.warmup, value.dtype)
        updates, moments = _optimizer(recipe, rate).update(gradients, moments, parameters)
        return optax.apply_updates(parameters, updates), moments, value

    return step


def _accumulated(
    value_and_grad: Callable[..., Any],
    parameters: nnx.State,
    steps: jax.Array,
    batch: Any,
    packings: Packings,
    count: int,
) -> Any:
    """Loss and gradients, added up over so many parts of the rows; each part draws masks of its own, and has its own packings."""
    if count == 1:
        return value_and_grad(parameters, steps, *batch, packings)

    def add(sums: Any, part: Any) -> Any:
        return jax.tree.map(jnp.add, sums, value_and_grad(parameters, *part)), None

    rows = batch[1].shape[0]
    # A keep mask may be the same for all rows.
    parts = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (rows, *x.shape[1:])).reshape(
            count, rows // count, *x.shape[1:]
        ),
        batch,
    )
    sums = (
        jnp.zeros((), jax.tree.leaves(parameters)[0].dtype),
        jax.tree.map(jnp.zeros_like, parameters),
    )
    return jax.lax.scan(
        add, sums, (steps * count + jnp.arange(count, dtype=steps.dtype), *parts, packings)
    )[0]


def _evaluate(
    graph: Any,
    random: list[Any],
    parameters: nnx.State,
    source: jax.Array,
    target: jax.Array,
    packings: Packings,
) -> jax.Array:
    """The sum of the losses of all labels, in evaluation mode."""
    model = nnx.merge(graph, parameters, *random)
    model.eval()
    return _objective(model)(source, target, total=1, **_packed(packings))


def _objective(model: Transformer) -> Callable[..., jax.Array]:
    """The loss of a batch: of classes, where the model has them."""
    return model.classification_loss if model.config.classes else model.training_loss


def _packed(packings: Packings) -> dict[str, Packings]:
    return {"packings": packings} if any(packings) else {}  # the loss of classes has none


def _count(config: TransformerConfig, target: Any) -> Any:
    """The number of labels that count: every class does."""
    return len(target) if config.classes else token_mask(target[:, 1:], config.padding_id).sum()
