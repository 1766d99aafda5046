"""Defects of what is drawn at random, which statistics show."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .defect import Defect

__all__ = ["DEFECTS"]

PROJECTIONS = ("d h k", "d g k", "d g e")


def _one_mask_for_all_heads(original: Callable, shape: tuple[int, ...], seed: int, rate: float) -> np.ndarray:
    return np.broadcast_to(original(shape[-2:], seed, rate), shape) if len(shape) == 4 else original(shape, seed, rate)


def _scaled_kernels(ratio: Callable[[tuple[int, ...], list[str]], float]) -> Callable:
    """The initialisation whose kernels are multiplied by a function of their shape and axes."""

    def altered(original: Callable, rng: Any, kind: str, letters: list[str], shape: tuple[int, ...], width: int) -> np.ndarray:
        value = original(rng, kind, letters, shape, width)
        return value * ratio(shape, letters) if kind == "kernel" else value

    return altered


def _fused(shape: tuple[int, ...], letters: list[str]) -> float:
    fan_in, fan_out = shape[0], math.prod(shape[1:])
    return ((fan_in + fan_out) / (fan_in + 3 * fan_out)) ** 0.5 if " ".join(letters) in PROJECTIONS else 1.0


def _as_convolution(shape: tuple[int, ...], letters: list[str]) -> float:
    if len(shape) < 3:
        return 1.0
    inputs = math.prod(shape[:-1]) if letters[-1] == "d" else shape[0]
    right, field = inputs + math.prod(shape) // inputs, math.prod(shape[:-2])
    return (right / (field * shape[-2] + field * shape[-1])) ** 0.5


DEFECTS = (
    Defect(
        id="DRP5",
        title="one dropout mask for all rows and heads",
        component="random_dropout",
        what="The attention weights of every row of the batch and of every head are dropped at the same places: one mask `t s` is "
        "broadcast.",
        shows="Rate and scale are right; the masks of two rows are the same. Their correlation shows it.",
        torch="weights = F.dropout(weights, rate, self.training)  # a mask of the weights' own shape",
        tf="weights = keras.layers.Dropout(rate)(weights)  # without noise_shape",
        jax="nnx.MultiHeadAttention(..., broadcast_dropout=False)  # the default is True",
        evidence="Flax's default, run",
        replaces={"rosettaformer.conformance.reference.statistics.keep_mask": _one_mask_for_all_heads},
    ),
    Defect(
        id="INI1",
        title="the fan of the fused projection",
        component="initialise",
        what="Xavier's limit of query, key and value is taken from one kernel of all three: `sqrt(6 / (d + 3 h k))` instead of `sqrt(6 / "
        "(d + h k))`.",
        shows="The three kernels are smaller by sqrt 2 where h k = d. The largest magnitude of a kernel shows it.",
        torch="for weight in self.in_proj_weight.chunk(3): nn.init.xavier_uniform_(weight)",
        tf="query, key and value as kernels of their own, each with keras.initializers.GlorotUniform()",
        jax="query, key and value as kernels of their own, each with its own fans",
        evidence="pytorch#166378",
        replaces={"parameters._initial_value": _scaled_kernels(_fused)},
    ),
    Defect(
        id="INI2",
        title="the kernel of heads is taken for a convolution's",
        component="initialise",
        what="The fans of a kernel `d h k` are those of a convolution of width d: `d h` and `d k` instead of `d` and `h k`.",
        shows="The kernels of attention are far too small. The largest magnitude of a kernel shows it.",
        torch="nn.init.xavier_uniform_(kernel.view(width, heads * size))  # as a matrix",
        tf="draw the kernel as a matrix (width, heads * size) and reshape it; GlorotUniform takes three axes for a convolution",
        jax="jax.nn.initializers.variance_scaling(1, 'fan_avg', 'uniform', in_axis=0, out_axis=(1, 2))",
        evidence="keras.initializers, compute_fans",
        replaces={"parameters._initial_value": _scaled_kernels(_as_convolution)},
    ),
)
