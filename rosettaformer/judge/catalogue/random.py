"""Known bugs of random initialization and dropout, found by statistics."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .alteration import Altered

PROJECTIONS = ("d h k", "d g k", "d g e")


def _one_mask_for_all_heads(original: Callable, shape: tuple[int, ...], seed: int, rate: float) -> np.ndarray:
    return np.broadcast_to(original(shape[-2:], seed, rate), shape) if len(shape) == 4 else original(shape, seed, rate)


def _scaled_kernels(ratio: Callable[[tuple[int, ...], list[str]], float]) -> Callable:
    """Multiplies initial kernels by a function of shape and axes."""

    def altered(original: Callable, rng: Any, kind: str, letters: list[str], shape: tuple[int, ...], *rest: Any) -> np.ndarray:
        value = original(rng, kind, letters, shape, *rest)
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


ALTERED: Altered = {
    "DRP5": {"rosettaformer.judge.expectation.statistics.keep_mask": _one_mask_for_all_heads},
    "INI1": {"parameters.initial_value": _scaled_kernels(_fused)},
    "INI2": {"parameters.initial_value": _scaled_kernels(_as_convolution)},
}
