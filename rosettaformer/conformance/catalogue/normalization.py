"""Defects of both norms: their axes, their mean, their parameters, their precision."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, normalization

from .alteration import Altered, Replaces, Variants
from .combinators import on_arguments
from .deviation import BOTH, LAYER, RMS, normalised, root_mean_square, variance

Array = np.ndarray


def _over(*axes: int) -> Replaces:
    """Normalises over these axes together."""
    return {LAYER: _normalised_over(axes, mean=True), RMS: _normalised_over(axes, mean=False)}


def _normalised_over(axes: tuple[int, ...], mean: bool) -> Callable:
    """Normalises over these axes together. mean: whether it is subtracted."""

    def altered(
        original: Callable, parameters: Any, x_btd: Array, epsilon: float, one_plus_scale: bool = False, cast_before_scale: bool = False
    ) -> Array:
        wide, size = arithmetic.upcast_half(x_btd), np.prod([x_btd.shape[axis] for axis in axes])
        if not size:
            return original(parameters, x_btd, epsilon, one_plus_scale, cast_before_scale)
        centred = wide - np.sum(wide, axis=axes, keepdims=True) / wide.dtype.type(size) if mean else wide
        deviation = np.sqrt(np.sum(centred * centred, axis=axes, keepdims=True) / wide.dtype.type(size) + wide.dtype.type(epsilon))
        return normalization._scaled(parameters, centred / deviation, x_btd.dtype, one_plus_scale, cast_before_scale)

    return altered


def _with(change: Callable[[Any], dict[str, Array]]) -> Replaces:
    """Changes the norm's scale and offset; of a norm without an offset, its scale by those with an offset of 0."""

    def changed(parameters: Any) -> dict[str, Array]:
        both = {"offset": np.zeros_like(parameters["scale"]), **parameters}
        return {name: value for name, value in change(both).items() if name in parameters}

    return dict.fromkeys(BOTH, on_arguments(parameters=changed))


def _one_pass(x: Array) -> Array:
    mean = arithmetic.mean(x, -1)
    return np.maximum(arithmetic.mean(x * x, -1) - mean * mean, 0)


def _without_offset(
    original: Callable, parameters: Any, x_btd: Array, epsilon: float, one_plus_scale: bool = False, cast_before_scale: bool = False
) -> Array:
    return normalised(root_mean_square, mean=False)(
        original, {"scale": parameters["scale"]}, x_btd, epsilon, one_plus_scale, cast_before_scale
    )


ALTERED: Altered = {
    "NRM2": dict.fromkeys(BOTH, on_arguments(epsilon=1e-3)),
    "NRM4": {LAYER: normalised(lambda x, epsilon: np.sqrt(_one_pass(x) + epsilon))},
    "NRM5": {
        LAYER: normalised(lambda x, epsilon: np.sqrt(variance(x, 1) + epsilon), axis=1),
        RMS: normalised(lambda x, epsilon: np.sqrt(arithmetic.mean(x * x, 1) + epsilon), mean=False),
    },
    "NRM7": dict.fromkeys(BOTH, on_arguments(cast_before_scale=True)),
    "NRM15": dict.fromkeys(BOTH, on_arguments(epsilon=1e-5)),
    "NRM20": {LAYER: normalised(root_mean_square, mean=False)},
    "NRM21": _with(lambda p: {"scale": p["scale"] + 1, "offset": p["offset"]}),
}
VARIANTS: Variants = {
    "NRM2": {"the norm has no epsilon": dict.fromkeys(BOTH, on_arguments(epsilon=0.0))},
    "NRM5": {
        "normalised over the batch": _over(0),
        "normalised over positions and features": _over(1, 2),
        "normalised over batch and positions, as a batch norm": _over(0, 1),
        "normalised over everything": _over(0, 1, 2),
    },
    "NRM20": {
        "the mean is not subtracted, and there is no offset: RMSNorm": {LAYER: _without_offset},
        "the mean is subtracted in the variance alone": {LAYER: normalised(lambda x, epsilon: np.sqrt(variance(x) + epsilon), mean=False)},
        "the mean is not subtracted in the variance": {LAYER: normalised(root_mean_square)},
    },
    "NRM21": {
        "1 is subtracted from the norm's scale": _with(lambda p: {"scale": p["scale"] - 1, "offset": p["offset"]}),
        "the norm's scale and offset are exchanged": _with(lambda p: {"scale": p["offset"], "offset": p["scale"]}),
        "the norm's offset is added before the scale": _with(lambda p: {"scale": p["scale"], "offset": p["scale"] * p["offset"]}),
        "the norm's offset is subtracted": _with(lambda p: {"scale": p["scale"], "offset": -p["offset"]}),
    },
}
