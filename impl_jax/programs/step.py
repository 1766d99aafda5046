"""Training programs: one step of the recipe, and the evaluation loss."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe

from ..dropout import Keep
from ..mask import token_mask
from ..optimizer import adam, clip_global_norm
from ..schedule import noam
from ..transformer import Transformer
from . import unpadding
from .assembly import assembled
from .sharding import Sharding
from .unpadding import Flat

__all__ = ["Batch", "count", "evaluation", "optimizer", "program", "streams"]

Graph = nnx.GraphDef[Transformer]
Gradients = tuple[jax.Array, nnx.State]  # a loss, and its gradients


class Batch(NamedTuple):
    """The inputs of a loss: source ids, target ids or classes, dropout masks by site, and flat
    tokens. With microbatches, all arrays start with an axis of parts.
    """

    source: Any
    target: jax.Array
    keep: Keep | None = None
    flat: Flat = Flat()


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def streams(config: TransformerConfig, dtype: np.dtype, seed: int) -> list[nnx.State]:
    """Returns the counts and keys of a model's random streams.

    The random parameters are not returned, so the program does not compute them.
    """
    model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
    return list(nnx.state(model, nnx.RngCount, nnx.RngKey))


def optimizer(
    recipe: Recipe, learning_rate: jax.Array | float
) -> optax.GradientTransformationExtraArgs:
    """Returns `adam` with the recipe's settings."""
    return adam(learning_rate, recipe.beta_1, recipe.beta_2, recipe.epsilon, recipe.weight_decay)


def program(
    graph: Graph,
    random: Sequence[nnx.State],
    config: TransformerConfig,
    recipe: Recipe,
    sharding: Sharding | None = None,
    recompute: bool = False,
    outputs: Any = None,
) -> jax.stages.Wrapped:
    """Returns (parameters, moments, steps, batch) -> (parameters, moments, loss).

    random: counts and keys of the model's streams; the counts are set from the number of steps.
    With sharding, the batch comes from `Sharding.batch`, and the program also takes `total`, the
    number of counted labels, and `rows`, those of a microbatch. outputs: shardings of the results.
    """
    counts, keys = random
    weights = recipe.router_weights(config, None if sharding is None else sharding.mesh)

    def loss(
        parameters: nnx.State, draw: jax.Array, batch: Batch, total: jax.Array | None
    ) -> jax.Array:
        drawn = jax.tree.map(lambda _: jnp.asarray(draw), counts)
        model = assembled(graph, parameters, drawn, keys, sharding=sharding, recompute=recompute)
        return _loss(model, batch, total, recipe.smoothing, **weights)

    def step(
        parameters: nnx.State,
        moments: optax.OptState,
        steps: jax.Array,
        batch: Batch,
        total: jax.Array | None = None,
        rows: int = 0,
    ) -> tuple[nnx.State, optax.OptState, jax.Array]:
        parts = recipe.microbatches
        if sharding is None:
            total = jnp.maximum(count(config, batch.target), 1)
            batch = batch if parts == 1 else _split(batch, parts)
        else:
            batch = jax.tree.map(lambda x: sharding.rows(x, rows), batch)
        value_and_grad = jax.value_and_grad(functools.partial(loss, total=total))
        if parts == 1:
            value, gradients = value_and_grad(parameters, steps, batch)
        else:
            gathers = sharding is not None and sharding.gathers
            draws = steps * parts + jnp.arange(parts, dtype=steps.dtype)
            value, gradients = _accumulated(value_and_grad, parameters, draws, batch, gathers)
        if recipe.clip_norm is not None:
            gradients = clip_global_norm(gradients, recipe.clip_norm)
        rate = noam(steps + 1, config.model_width, recipe.warmup, value.dtype)
        updates, moments = optimizer(recipe, rate).update(gradients, moments, parameters)
        return optax.apply_updates(parameters, updates), moments, value

    return jax.jit(step, donate_argnums=(0, 1), static_argnames="rows", out_shardings=outputs)


def _split(batch: Batch, parts: int) -> Batch:
    """Splits the rows of a batch into parts; flat tokens already have parts."""

    def split(x: jax.Array) -> jax.Array:
        # A keep mask may be the same for all rows.
        of_rows = jnp.broadcast_to(x, (len(batch.target), *x.shape[1:]))
        return of_rows.reshape(parts, -1, *x.shape[1:])

    source, target, keep = jax.tree.map(split, batch[:3])
    return Batch(source, target, keep, batch.flat)


def _accumulated(
    value_and_grad: Callable[[nnx.State, jax.Array, Batch], Gradients],
    parameters: nnx.State,
    draws: jax.Array,
    batch: Batch,
    gathers: bool,
) -> Gradients:
    """Sums loss and gradients over parts of the rows; each part draws its own masks.

    gathers: each part gathers the parameters; otherwise XLA gathers them once, before the loop.
    """

    def add(sums: Gradients, part: tuple[jax.Array, Batch]) -> tuple[Gradients, None]:
        own = parameters
        if gathers:
            own, part = jax.lax.optimization_barrier((parameters, part))
        draw, rows = part
        return jax.tree.map(jnp.add, sums, value_and_grad(own, draw, rows)), None

    zero = jnp.zeros((), jax.tree.leaves(parameters)[0].dtype)
    sums = zero, jax.tree.map(jnp.zeros_like, parameters)
    return jax.lax.scan(add, sums, (draws, batch))[0]


def evaluation(
    graph: Graph, random: Sequence[nnx.State], sharding: Sharding | None = None
) -> Callable[..., jax.Array]:
    """Returns (parameters, source, target, flat) -> sum of all label losses, in evaluation mode.

    With sharding: (parameters, source, target, flat, rows), as in `program`.
    """
    counts, keys = random

    @functools.partial(jax.jit, static_argnames="rows")
    def evaluate(
        parameters: nnx.State,
        source: jax.Array | None,
        target: jax.Array,
        flat: Flat,
        rows: int = 0,
    ) -> jax.Array:
        if sharding is not None:
            source, target = jax.tree.map(lambda x: sharding.rows(x, rows), (source, target))
        model = assembled(graph, parameters, counts, keys, sharding=sharding)
        model.eval()
        return _loss(model, Batch(source, target, flat=flat), total=1)

    return evaluate


def _loss(
    model: Transformer,
    batch: Batch,
    total: jax.Array | int | None,
    smoothing: float = 0.0,
    **weights: Any,
) -> jax.Array:
    """Returns the loss of a batch, that of its classes if the model has them.

    weights: of routers.
    """
    source, target, keep, flat = batch
    if model.config.classes:
        return model.classification_loss(source, target, smoothing, total, keep)
    given = source, target, smoothing, total, keep
    return unpadding.training_loss(model, flat, *given, **weights)


def count(config: TransformerConfig, target: Any) -> jax.Array | int:
    """Returns the number of labels that count; every class does."""
    return len(target) if config.classes else token_mask(target[:, 1:], config.padding_id).sum()
