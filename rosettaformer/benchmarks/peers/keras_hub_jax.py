"""GPT-2 and Llama of KerasHub on the JAX backend of Keras, which has one backend a process."""

import functools
import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # KerasHub imports TensorFlow for its preprocessors

import jax

from ..problem import Problem
from ..timed_rows import Row, Step, training_row
from . import flax_stock, keras_hub
from .jax import Function, pass_row, placed


def describe(device: str) -> str:
    """Adds nothing to JAX's description of the device."""
    return ""


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns the row of a decoder's forward pass, training step or greedy search."""
    task, name = problem.task, f"keras_hub {problem.task.published} on JAX compiled"
    if not problem.config.decoder_layers:
        return []
    if task.kind == "training":
        start = lambda given: placed(device, functools.partial(_training, given))  # noqa: E731
        return [training_row("jax", name, start, problem, peer=True, compiles=True)]
    if task.kind == "greedy":
        search = functools.partial(placed, device, functools.partial(keras_hub.generate, problem, True))
        return [Row("jax", name, peer=True, compiles=True, start=search)]
    return [pass_row(device, "float32", name, functools.partial(_pass, problem), problem.target, peer=True)]


def _pass(problem: Problem) -> Function:
    apply, *state = _split(problem, training=False)
    return functools.partial(jax.jit(lambda state, target: apply(*state, None, target)[0]), state)


def _training(problem: Problem) -> Step:
    return flax_stock.functional_training(*_split(problem, training=True), problem)


def _split(problem: Problem, training: bool) -> tuple[Any, list[jax.Array], list[jax.Array]]:
    """The model as a function, its parameters and the rest of its state, as Keras's guide to training in JAX has them."""
    model = keras_hub.causal(problem)

    def apply(parameters: list[jax.Array], rest: list[jax.Array], source: None, target: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        return model.stateless_call(parameters, rest, keras_hub.inputs(target), training=training)

    return apply, [each.value for each in model.trainable_variables], [each.value for each in model.non_trainable_variables]
