"""Known bugs of RMS norms, including 1 + scale and the cast before the scale."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, normalization

from .alteration import Altered, Array, Variants, on_arguments
from .deviation import BOTH, RMS, normalised, root_mean_square, variance


def _deviation(x: Array, epsilon: Any) -> Array:
    return np.sqrt(variance(x) + epsilon)


def _in_half_precision(
    original: Callable, parameters: Any, x_btd: Array, epsilon: float, one_plus_scale: bool = False, cast_before_scale: bool = False
) -> Array:
    if not arithmetic.is_half(x_btd.dtype):
        return original(parameters, x_btd, epsilon, one_plus_scale, cast_before_scale)
    with np.errstate(all="ignore"):
        square_bt1 = arithmetic.mean((x_btd * x_btd).astype(np.float32), -1).astype(x_btd.dtype)
        root_bt1 = np.sqrt((square_bt1 + x_btd.dtype.type(epsilon)).astype(x_btd.dtype)).astype(x_btd.dtype)
        normalised_btd = (x_btd / root_bt1).astype(x_btd.dtype)
    return normalization.scaled(parameters, normalised_btd, x_btd.dtype, one_plus_scale, cast_before_scale)


def _divided(deviation: Callable[[Array, Any], Array], mean: bool = False) -> dict[str, Callable]:
    return {RMS: normalised(deviation, mean=mean)}


def _from_zero(config: Any) -> Any:
    return config.replace(norm_one_plus_scale=False)


ALTERED: Altered = {
    "NRM24": _divided(_deviation, mean=True),
    "NRM25": dict.fromkeys(BOTH, on_arguments(one_plus_scale=False)),
    "NRM26": dict.fromkeys(BOTH, on_arguments(cast_before_scale=False)),
    "NRM27": {RMS: _in_half_precision},
    "NRM28": _divided(lambda x, epsilon: np.sqrt(arithmetic.mean(x * x, -1)) + epsilon),
}
VARIANTS: Variants = {
    "NRM24": {
        "the RMS norm divides by the standard deviation": _divided(_deviation),
        "the RMS norm subtracts the mean after computing the mean square": _divided(root_mean_square, mean=True),
    },
    "NRM25": {"only the query and key norms lack 1 + scale": {"attention.query_key_norm": on_arguments(config=_from_zero)}},
    "NRM28": {
        "the RMS norm divides by the mean square, without the root": _divided(lambda x, epsilon: arithmetic.mean(x * x, -1) + epsilon),
        "the RMS norm divides by the root of the sum of squares instead of their mean": _divided(
            lambda x, epsilon: np.sqrt(arithmetic.sum(x * x, -1) + epsilon)
        ),
        "the RMS is clamped to at least epsilon": _divided(lambda x, epsilon: np.maximum(np.sqrt(arithmetic.mean(x * x, -1)), epsilon)),
    },
}
