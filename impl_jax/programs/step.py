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
from .unpadding import Flat

__all__ = ["blank", "count", "evaluation", "optimizer", "program"]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def blank(config: TransformerConfig, dtype: np.dtype, seed: int) -> Transformer:
    """A model of zeros with the random streams of the seed.

    A program does not compute the random parameters that it does not return.
    """
    model = Transformer(config, param_dtype=dtype, rngs=nnx.Rngs(seed))
    nnx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param)))
    return model


def optimizer(recipe: Recipe, learning_rate: Any) -> optax.GradientTransformationExtraArgs:
    """`adam` by the recipe."""
    return adam(learning_rate, recipe.beta_1, recipe.beta_2, recipe.epsilon, recipe.weight_decay)


def program(
    graph: Any, random: list[Any], config: TransformerConfig, recipe: Recipe
) -> Callable[..., Any]:
    """(parameters, moments, steps, source, target, keep, flat) -> (parameters, moments, loss).

    random: the counts and keys of the model's streams. The counts are set from the number of steps.
    """
    counts, keys = random

    def loss(
        parameters: nnx.State, draw: jax.Array, source: Any, target: Any, keep: Any, flat: Flat,
        total: jax.Array,
    ) -> jax.Array:  # fmt: skip
        drawn = jax.tree.map(lambda _: jnp.asarray(draw), counts)
        model = nnx.merge(graph, parameters, drawn, keys)
        return _loss(model, flat, source, target, recipe.smoothing, total, keep)

    def step(
        parameters: nnx.State,
        moments: Any,
        steps: jax.Array,
        source: jax.Array,
        target: jax.Array,
        keep: Keep | None,
        flat: Flat,
    ) -> Any:
        total = jnp.maximum(count(config, target), 1)
        value_and_grad = jax.value_and_grad(functools.partial(loss, total=total))
        batch, parts = (source, target, keep), recipe.microbatches
        value, gradients = _accumulated(value_and_grad, parameters, steps, batch, flat, parts)
        if recipe.clip_norm is not None:
            gradients = clip_global_norm(gradients, recipe.clip_norm)
        rate = noam(steps + 1, config.model_width, recipe.warmup, value.dtype)
        updates, moments = optimizer(recipe, rate).update(gradients, moments, parameters)
        return optax.apply_updates(parameters, updates), moments, value

    return jax.jit(step, donate_argnums=(0, 1))


def _accumulated(
    value_and_grad: Callable[..., Any],
    parameters: nnx.State,
    steps: jax.Array,
    batch: Any,
    flat: Flat,
    parts: int,
) -> Any:
    """Loss and gradients, added up over parts of the rows; each part draws masks of its own."""
    if parts == 1:
        return value_and_grad(parameters, steps, *batch, flat)

    def add(sums: Any, part: Any) -> Any:
        return jax.tree.map(jnp.add, sums, value_and_grad(parameters, *part)), None

    def split(x: jax.Array) -> jax.Array:
        # A keep mask may be the same for all rows.
        of_rows = jnp.broadcast_to(x, (len(batch[1]), *x.shape[1:]))
        return of_rows.reshape(parts, -1, *x.shape[1:])

    zero = jnp.zeros((), jax.tree.leaves(parameters)[0].dtype)
    sums = zero, jax.tree.map(jnp.zeros_like, parameters)
    draws = steps * parts + jnp.arange(parts, dtype=steps.dtype)
    return jax.lax.scan(add, sums, (draws, *jax.tree.map(split, batch), flat))[0]


def evaluation(graph: Any, random: list[Any]) -> Callable[..., jax.Array]:
    """(parameters, source, target, flat) -> the sum of the losses of all labels, in evaluation."""

    @jax.jit
    def evaluate(parameters: nnx.State, source: Any, target: Any, flat: Flat) -> jax.Array:
        model = nnx.merge(graph, parameters, *random)
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
