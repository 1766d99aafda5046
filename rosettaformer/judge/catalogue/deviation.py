"""Known bugs of the standard deviation in layer norms."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic, normalization

from .alteration import Altered, Array, Variants

LAYER, RMS = BOTH = ("normalization.layer_norm", "normalization.rms_norm")


def normalised(deviation: Callable[[Array, Any], Array], axis: int = -1, mean: bool = True) -> Callable:
    """Normalizes over this axis by another deviation: a function of the upcast input and epsilon.

    mean: whether to subtract the mean.
    """

    def altered(
        original: Callable, parameters: Any, x_btd: Array, epsilon: float, one_plus_scale: bool = False, cast_before_scale: bool = False
    ) -> Array:
        wide = arithmetic.upcast_half(x_btd)
        centred_btd = wide - arithmetic.mean(wide, axis) if mean else wide
        normalised_btd = arithmetic.divide(centred_btd, deviation(wide, wide.dtype.type(epsilon)))
        return normalization.scaled(parameters, normalised_btd, x_btd.dtype, one_plus_scale, cast_before_scale)

    return altered


def variance(x: Array, axis: int = -1, lost: int = 0) -> Array:
    """`sum (x - mean)^2 / (n - lost)` over the n entries of the axis."""
    centred = x - arithmetic.mean(x, axis)
    return arithmetic.divide(arithmetic.sum(centred * centred, axis), x.dtype.type(x.shape[axis] - lost))


def root_mean_square(x: Array, epsilon: Any) -> Array:
    """`sqrt(mean(x^2) + epsilon)` over the last axis."""
    return np.sqrt(arithmetic.mean(x * x, -1) + epsilon)


def _norm(deviation: Callable[[Array, Any], Array], mean: bool = True) -> Mapping[str, Callable]:
    return {LAYER: normalised(deviation, mean=mean)}


def _squares(x: Array) -> Array:
    return arithmetic.sum(x * x, -1)


def _centred(x: Array) -> Array:
    return x - arithmetic.mean(x, -1)


ALTERED: Altered = {
    "NRM1": {LAYER: normalised(lambda x, epsilon: np.sqrt(variance(x, lost=1)) + epsilon)},
    "NRM3": {LAYER: normalised(lambda x, epsilon: (variance(x) + epsilon) ** 2)},
    "NRM23": _norm(lambda x, epsilon: np.sqrt(_squares(_centred(x)) + epsilon)),
}
VARIANTS: Variants = {
    "NRM1": {
        "the variance is clamped: sqrt(max(variance, epsilon))": _norm(lambda x, epsilon: np.sqrt(np.maximum(variance(x), epsilon))),
        "the standard deviation is clamped: max(sqrt(variance), epsilon)": _norm(
            lambda x, epsilon: np.maximum(np.sqrt(variance(x)), epsilon)
        ),
        "epsilon is squared: sqrt(variance + epsilon^2)": _norm(lambda x, epsilon: np.sqrt(variance(x) + epsilon * epsilon)),
        "epsilon is added both inside and outside the root": _norm(lambda x, epsilon: np.sqrt(variance(x) + epsilon) + epsilon),
    },
    "NRM3": {
        "divides by the variance, without the root": {LAYER: normalised(lambda x, epsilon: variance(x) + epsilon)},
        "multiplies by the standard deviation": {LAYER: normalised(lambda x, epsilon: 1 / np.sqrt(variance(x) + epsilon))},
        "only the mean is subtracted; nothing is divided": {LAYER: normalised(lambda x, epsilon: x.dtype.type(1))},
    },
    "NRM23": {
        "divides by the L2 norm: x / sqrt(sum x^2 + epsilon), as F.normalize": _norm(
            lambda x, epsilon: np.sqrt(_squares(x) + epsilon), mean=False
        ),
        "divides by the mean absolute deviation": _norm(lambda x, epsilon: arithmetic.mean(np.abs(_centred(x)), -1) + epsilon),
        "divides by the largest absolute deviation": _norm(
            lambda x, epsilon: np.abs(_centred(x)).max(axis=-1, keepdims=True, initial=0) + epsilon
        ),
    },
}
