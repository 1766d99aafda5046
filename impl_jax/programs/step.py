"""The programs of training: one step of the recipe, and the loss in evaluation."""

import functools
from collections.abc import Callable
from typing import Any

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

__all__ = ["KINDS", "blank", "count", "evaluation", "optimizer", "program", "streams"]


KINDS = (nnx.Param, nnx.RngCount, nnx.RngKey)  # of a model's variables


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def blank(config: TransformerConfig, dtype: np.dtype, seed: int) -> Transformer:
    """A model of zeros with the random streams of the seed.

    A program does not compute the random parameters that it does not return.
    """
    model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
    nnx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param)))
    return model


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def streams(config: TransformerConfig, dtype: np.dtype, seed: int) -> list[Any]:
    """The counts and keys of the random streams of `blank`, without its parameters."""
    model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
    return list(nnx.split(model, *KINDS)[2:])


def optimizer(recipe: Recipe, learning_rate: Any) -> optax.GradientTransformationExtraArgs:
    """`adam` by the recipe."""
    return adam(learning_rate, recipe.beta_1, recipe.beta_2, recipe.epsilon, recipe.weight_decay)


def program(
    graph: Any,
    random: list[Any],
    config: TransformerConfig,
    recipe: Recipe,
    sharding: Sharding | None = None,
    recompute: bool = False,
    outputs: Any = None,
) -> Callable[..., Any]:
    """(parameters, moments, steps, source, target, keep, flat) -> (parameters, moments, loss).

    random: the counts and keys of the model's streams. The counts are set from the number of steps.
    With sharding a batch is what `Sharding.batch` makes of its microbatches; the program is given
    the rows of each, `rows`, and the number of labels that count, `total`, besides. outputs: the
    shardings of what it returns.
    """
    counts, keys = random

    def loss(
        parameters: nnx.State, draw: jax.Array, source: Any, target: Any, keep: Any, flat: Flat,
        total: jax.Array,
    ) -> jax.Array:  # fmt: skip
        drawn = jax.tree.map(lambda _: jnp.asarray(draw), counts)
        model = assembled(graph, parameters, drawn, keys, sharding=sharding, recompute=recompute)
        return _loss(model, flat, source, target, recipe.smoothing, total, keep)

    def step(
        parameters: nnx.State,
        moments: Any,
        steps: jax.Array,
        source: jax.Array,
        target: jax.Array,
        keep: Keep | None,
        flat: Flat,
        total: Any = None,
        rows: int = 0,
    ) -> Any:
        batch, parts = (source, target, keep), recipe.microbatches
        if sharding is None:
            total = jnp.maximum(count(config, target), 1)
            batch = batch if parts == 1 else _split(batch, parts)
        else:
            batch = jax.tree.map(lambda x: sharding.rows(x, rows), batch)
        value_and_grad = jax.value_and_grad(functools.partial(loss, total=total))
        gathers = sharding is not None and sharding.gathers
        given = value_and_grad, parameters, steps, batch, flat, parts
        value, gradients = _accumulated(*given, gathers=gathers)
        if recipe.clip_norm is not None:
            gradients = clip_global_norm(gradients, recipe.clip_norm)
        rate = noam(steps + 1, config.model_width, recipe.warmup, value.dtype)
        updates, moments = optimizer(recipe, rate).update(gradients, moments, parameters)
        return optax.apply_updates(parameters, updates), moments, value

    return jax.jit(step, donate_argnums=(0, 1), static_argnames="rows", out_shardings=outputs)


def _split(batch: Any, parts: int) -> Any:
    """The batch in parts of its rows."""

    def split(x: jax.Array) -> jax.Array:
        # A keep mask may be the same for all rows.
        of_rows = jnp.broadcast_to(x, (len(batch[1]), *x.shape[1:]))
        return of_rows.reshape(parts, -1, *x.shape[1:])

    return jax.tree.map(split, batch)


def _accumulated(
    value_and_grad: Callable[..., Any],
    parameters: nnx.State,
    steps: jax.Array,
    batch: Any,
    flat: Flat,
    parts: int,
    gathers: bool = False,
) -> Any:
    """Loss and gradients, added up over parts of the rows; each part draws masks of its own.

    gathers: each part brings the parameters together for itself. Otherwise XLA does it once, before
    the loop, and all of them are whole within it.
    """
    if parts == 1:
        return value_and_grad(parameters, steps, *batch, flat)

    def add(sums: Any, part: Any) -> Any:
        own = parameters
        if gathers:
            own, part = jax.lax.optimization_barrier((parameters, part))
        return jax.tree.map(jnp.add, sums, value_and_grad(own, *part)), None

    zero = jnp.zeros((), jax.tree.leaves(parameters)[0].dtype)
    sums = zero, jax.tree.map(jnp.zeros_like, parameters)
    draws = steps * parts + jnp.arange(parts, dtype=steps.dtype)
    return jax.lax.scan(add, sums, (draws, *batch, flat))[0]


def evaluation(
    graph: Any, random: list[Any], sharding: Sharding | None = None
) -> Callable[..., jax.Array]:
    """(parameters, source, target, flat) -> the sum of the losses of all labels, in evaluation.

    With sharding: (parameters, source, target, flat, rows), as `program`.
    """

    @functools.partial(jax.jit, static_argnames="rows")
    def evaluate(
        parameters: nnx.State, source: Any, target: Any, flat: Flat, rows: int = 0
    ) -> jax.Array:
        if sharding is not None:
            source, target = jax.tree.map(lambda x: sharding.rows(x, rows), (source, target))
        model = assembled(graph, parameters, *random, sharding=sharding)
        model.eval()
        return _loss(model, flat, source, target, total=1)

    return evaluate


def _loss(
    model: Transformer, flat: Flat, source: Any, target: Any, *options: Any, **more: Any
) -> Any:
    """The loss of a batch: of classes, if the model has them."""
    if model.config.classes:
        return model.classification_loss(source, target, *options, **more)
    return unpadding.training_loss(model, flat, source, target, *options, **more)


def count(config: TransformerConfig, target: Any) -> Any:
    """The number of labels that count: every class does."""
    return len(target) if config.classes else token_mask(target[:, 1:], config.padding_id).sum()
