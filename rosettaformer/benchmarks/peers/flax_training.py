"""The training step of Flax's stock layers, as a user of Flax writes it, and split by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from impl_jax.framework import settings
from impl_jax.schedule import noam

from ..problem import Problem
from ..rows import Step
from ..workloads import PADDING
from .flax_stock import Stock, build

__all__ = ["split_training", "walked_training"]

Array = jax.Array


def walked_training(device: str, problem: Problem) -> Step:
    """By `nnx.jit` and `nnx.Optimizer`."""
    with settings(device, "float32"):
        stock, source, target = _stock_to_train(problem)
        optimizer = nnx.Optimizer(stock, _adam(problem), wrt=nnx.Param)

    @nnx.jit
    def step(stock: Stock, optimizer: nnx.Optimizer, source: Array, target: Array) -> Array:
        loss, gradients = nnx.value_and_grad(_loss)(stock, source, target, problem.recipe.smoothing)
        optimizer.update(stock, gradients)
        return loss

    def run() -> Array:
        with settings(device, "float32"):
            return step(stock, optimizer, source, target)

    return run


def split_training(device: str, problem: Problem) -> Step:
    """Split once, with all that changes donated."""
    with settings(device, "float32"):
        stock, source, target = _stock_to_train(problem)
        optimizer = _adam(problem)
        graph, *state = nnx.split(stock, nnx.Param, ...)
        state.append(jax.jit(optimizer.init)(state[0]))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: list[Any], source: Array, target: Array) -> tuple[list[Any], Array]:
        parameters, random, moments = state

        def loss(parameters: nnx.State) -> tuple[Array, nnx.State]:
            model = nnx.merge(graph, parameters, random, copy=True)
            return _loss(model, source, target, problem.recipe.smoothing), nnx.state(model, nnx.Not(nnx.Param))

        (value, random), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return [optax.apply_updates(parameters, updates), random, moments], value

    def run() -> Array:
        nonlocal state
        with settings(device, "float32"):
            state, loss = step(state, source, target)
        return loss

    return run


def _stock_to_train(problem: Problem) -> tuple[Stock, Array, Array]:
    stock = build(problem)
    stock.train()
    return stock, jnp.asarray(problem.source), jnp.asarray(problem.sequence)


def _adam(problem: Problem) -> optax.GradientTransformationExtraArgs:
    width, recipe = problem.config.model_width, problem.recipe
    return optax.adam(lambda done: noam(done + 1, width, recipe.warmup), recipe.beta_1, recipe.beta_2, recipe.epsilon)


def _loss(stock: Stock, source: Array, target: Array, smoothing: float) -> Array:
    label = target[:, 1:]
    smoothed, counted = optax.smooth_labels(jax.nn.one_hot(label, stock.config.target_vocabulary), smoothing), label != PADDING
    losses = optax.softmax_cross_entropy(stock(source, target[:, :-1]), smoothed)
    return jnp.sum(losses, where=counted) / counted.sum()
