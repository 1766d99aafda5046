"""Layer normalisation."""

import numpy as np

from . import arithmetic, checks
from .arrays import Array, Gradients, Tree

__all__ = ["layer_norm", "layer_norm_vjp"]


def layer_norm(parameters: Tree, x_btd: Array, epsilon: float) -> Array:
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d, `b t d` (NORM).

    The variance is biased (divided by d) and taken in a second pass over the centred values, so
    that a large mean costs no accuracy. Half-precision dtypes compute in float32 up to and with the
    offset. parameters: scale `d`, offset `d`. Raises ValueError where x is not `b t d`. Source: Ba
    et al. 2016, eq. 4.
    """
    checks.check_features("x", x_btd.shape, parameters["scale"].shape[0])
    normalised_btd, _ = _normalise(x_btd, epsilon)
    y_btd = normalised_btd * arithmetic.upcast_half(parameters["scale"])
    y_btd += arithmetic.upcast_half(parameters["offset"])
    return y_btd.astype(x_btd.dtype, copy=False)


def layer_norm_vjp(
    parameters: Tree, x_btd: Array, epsilon: float, *, cotangent: Array
) -> Gradients:
    """`dx = (h - mean(h) - n mean(h n)) / sqrt(variance + epsilon)` with `n = (x - mean) /
    sqrt(variance + epsilon)`, `h = scale g`.

    `dscale = sum_bt g n`, `doffset = sum_bt g`. The root holds epsilon, so a constant row has a
    finite gradient.
    """
    normalised_btd, deviation_bt1 = _normalise(x_btd, epsilon)
    g_btd = arithmetic.upcast_half(cotangent)
    h_btd = g_btd * arithmetic.upcast_half(parameters["scale"])
    slope_bt1 = arithmetic.mean(h_btd * normalised_btd, axis=-1)
    gradient_btd = arithmetic.divide(
        h_btd - arithmetic.mean(h_btd, axis=-1) - normalised_btd * slope_bt1, deviation_bt1
    )
    shape, dtype = parameters["scale"].shape, parameters["scale"].dtype
    scale_d = arithmetic.unbroadcast(g_btd * normalised_btd, shape).astype(dtype, copy=False)
    offset_d = arithmetic.unbroadcast(g_btd, shape).astype(dtype, copy=False)
    return {
        "parameters": {"scale": scale_d, "offset": offset_d},
        "x_btd": gradient_btd.astype(x_btd.dtype, copy=False),
    }


def _normalise(x_btd: Array, epsilon: float) -> tuple[Array, Array]:
    """`(x - mean) / deviation` and `deviation = sqrt(variance + epsilon)`, at least in float32."""
    wide_btd = arithmetic.upcast_half(x_btd)
    centred_btd = wide_btd - arithmetic.mean(wide_btd, axis=-1)
    variance_bt1 = arithmetic.mean(centred_btd * centred_btd, axis=-1)
    deviation_bt1 = np.sqrt(variance_bt1 + wide_btd.dtype.type(epsilon))
    return arithmetic.divide(centred_btd, deviation_bt1), deviation_bt1
