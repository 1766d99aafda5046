"""Layer normalization and root-mean-square normalization (NORM)."""

import numpy as np

from . import arithmetic, checks
from .arrays import Array, Gradients, Tree
from .config import TransformerConfig as Config

__all__ = ["layer_norm", "layer_norm_vjp", "norm", "norm_vjp", "rms_norm", "rms_norm_vjp"]


def layer_norm(
    parameters: Tree,
    x_btd: Array,
    epsilon: float,
    one_plus_scale: bool = False,
    cast_before_scale: bool = False,
) -> Array:
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d, `b t d` (NORM).

    The variance is biased (divided by d) and computed in a second pass over centered values, so
    that a large mean costs no accuracy. Half-precision dtypes compute in float32 and round after
    the offset, or with `cast_before_scale` before the scale. one_plus_scale: multiplies by
    `1 + scale`. parameters: scale `d`, and offset `d` if present; several axes are flattened. x may
    be heads `b t h k`, which are normalized over k, with scales `h k`. Raises ValueError if x is
    neither. Source: Ba et al. 2016, eq. 4.
    """
    checks.check_features("x", _rows(x_btd).shape, parameters["scale"].size)
    normalised_btd, _ = _normalise(x_btd, epsilon)
    return scaled(parameters, normalised_btd, x_btd.dtype, one_plus_scale, cast_before_scale)


def layer_norm_vjp(
    parameters: Tree,
    x_btd: Array,
    epsilon: float,
    one_plus_scale: bool = False,
    cast_before_scale: bool = False,
    *,
    cotangent: Array,
) -> Gradients:
    """`dx = (h - mean(h) - n mean(h n)) / sqrt(variance + epsilon)`, with
    `n = (x - mean) / sqrt(variance + epsilon)` and `h = scale g`.

    `dscale = sum_bt g n`, `doffset = sum_bt g`. Since epsilon is inside the root, constant rows
    have finite gradients.
    """
    normalised_btd, deviation_bt1 = _normalise(x_btd, epsilon)
    h_btd, gradients = _scaled_vjp(
        parameters, normalised_btd, x_btd.dtype, one_plus_scale, cast_before_scale, cotangent
    )
    slope_bt1 = arithmetic.mean(h_btd * normalised_btd, axis=-1)
    centred_btd = h_btd - arithmetic.mean(h_btd, axis=-1)
    gradient_btd = arithmetic.divide(centred_btd - normalised_btd * slope_bt1, deviation_bt1)
    return {"parameters": gradients, "x_btd": gradient_btd.astype(x_btd.dtype, copy=False)}


def rms_norm(
    parameters: Tree,
    x_btd: Array,
    epsilon: float,
    one_plus_scale: bool = False,
    cast_before_scale: bool = False,
) -> Array:
    """`y = scale x / sqrt(mean(x^2) + epsilon) + offset` over d, `b t d` (NORM).

    No mean is subtracted; published models have no offset. Arguments, dtypes and errors match
    `layer_norm`. Source: Zhang & Sennrich 2019, eq. 4; cast_before_scale: Touvron et al. 2023,
    Llama, published code; one_plus_scale: Gemma Team 2024, Gemma, published code.
    """
    checks.check_features("x", _rows(x_btd).shape, parameters["scale"].size)
    normalised_btd, _ = _divide_by_rms(x_btd, epsilon)
    return scaled(parameters, normalised_btd, x_btd.dtype, one_plus_scale, cast_before_scale)


def rms_norm_vjp(
    parameters: Tree,
    x_btd: Array,
    epsilon: float,
    one_plus_scale: bool = False,
    cast_before_scale: bool = False,
    *,
    cotangent: Array,
) -> Gradients:
    """`dx = (h - n mean(h n)) / r`, with `r = sqrt(mean(x^2) + epsilon)`, `n = x / r`,
    `h = scale g`; `dscale = sum_bt g n`, `doffset = sum_bt g`.
    """
    normalised_btd, root_bt1 = _divide_by_rms(x_btd, epsilon)
    h_btd, gradients = _scaled_vjp(
        parameters, normalised_btd, x_btd.dtype, one_plus_scale, cast_before_scale, cotangent
    )
    slope_bt1 = arithmetic.mean(h_btd * normalised_btd, axis=-1)
    gradient_btd = arithmetic.divide(h_btd - normalised_btd * slope_bt1, root_bt1)
    return {"parameters": gradients, "x_btd": gradient_btd.astype(x_btd.dtype, copy=False)}


def norm(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """Applies the norm of the config, `rms_norm` or `layer_norm`; without norm_scale, by 1.

    Source of norms without parameters: Groeneveld et al. 2024, OLMo, section 2.1.
    """
    function = rms_norm if config.norm == "rms" else layer_norm
    return function(completed(parameters, config, x_btd), x_btd, config.epsilon, *_flags(config))


def norm_vjp(parameters: Tree, config: Config, x_btd: Array, *, cotangent: Array) -> Gradients:
    """Backward pass through the norm of the config. Returns parameters and x_btd."""
    function = rms_norm_vjp if config.norm == "rms" else layer_norm_vjp
    whole = completed(parameters, config, x_btd)
    found = function(whole, x_btd, config.epsilon, *_flags(config), cotangent=cotangent)
    gradients = found["parameters"]
    return found | {"parameters": {name: gradients[name] for name in parameters}}


def completed(parameters: Tree, config: Config, x_btd: Array) -> Tree:
    """Adds a scale that multiplies by 1, unless norms have their own."""
    if config.norm_scale:
        return parameters
    scale_d = np.full(x_btd.shape[2:], float(not config.norm_one_plus_scale)).astype(x_btd.dtype)
    return {"scale": scale_d, **parameters}


def _flags(config: Config) -> tuple[bool, bool]:
    return config.norm_one_plus_scale, config.norm_cast_before_scale


def _normalise(x_btd: Array, epsilon: float) -> tuple[Array, Array]:
    """`(x - mean) / deviation` and `deviation = sqrt(variance + epsilon)`, at least float32."""
    wide_btd = arithmetic.upcast_half(x_btd)
    return _divide_by_rms(wide_btd - arithmetic.mean(wide_btd, axis=-1), epsilon)


def _divide_by_rms(x_btd: Array, epsilon: float) -> tuple[Array, Array]:
    """`x / root` and `root = sqrt(mean(x^2) + epsilon)`, at least float32."""
    wide_btd = arithmetic.upcast_half(x_btd)
    root_bt1 = np.sqrt(arithmetic.mean(wide_btd * wide_btd, axis=-1) + wide_btd.dtype.type(epsilon))
    return arithmetic.divide(wide_btd, root_bt1), root_bt1


def _rows(x_btd: Array) -> Array:
    """Puts the features of all heads on one axis."""
    return x_btd.reshape(*x_btd.shape[:2], -1) if x_btd.ndim == 4 else x_btd


def scaled(
    parameters: Tree, normalised_btd: Array, dtype: np.dtype, one_plus: bool, cast: bool
) -> Array:
    """`scale n + offset` in the dtype of n, or with cast in the dtype of the result."""
    wide = dtype if cast else normalised_btd.dtype
    y_btd = _rows(normalised_btd.astype(wide, copy=False)) * _scale(parameters, wide, one_plus)
    if "offset" in parameters:
        y_btd += parameters["offset"].reshape(-1).astype(wide, copy=False)
    return y_btd.astype(dtype, copy=False).reshape(normalised_btd.shape)


def _scaled_vjp(
    parameters: Tree,
    normalised_btd: Array,
    dtype: np.dtype,
    one_plus: bool,
    cast: bool,
    cotangent: Array,
) -> tuple[Array, Gradients]:
    """`h = scale g`, and the gradients of scale and offset, summed in at least float32."""
    g_btd, scale_d = _rows(arithmetic.upcast_half(cotangent)), parameters["scale"]
    h_btd = (g_btd * _scale(parameters, g_btd.dtype, one_plus)).reshape(normalised_btd.shape)
    seen_btd = _rows(normalised_btd)
    seen_btd = seen_btd.astype(dtype).astype(g_btd.dtype) if cast else seen_btd
    by_name = {"scale": g_btd * seen_btd} | ({"offset": g_btd} if "offset" in parameters else {})
    gradients = {
        name: arithmetic.unbroadcast(each_btd, (scale_d.size,)).astype(scale_d.dtype, copy=False)
        for name, each_btd in by_name.items()
    }
    shapes = {name: parameters[name].shape for name in gradients}
    return h_btd, {name: each_d.reshape(shapes[name]) for name, each_d in gradients.items()}


def _scale(parameters: Tree, dtype: np.dtype, one_plus: bool) -> Array:
    scale_d = parameters["scale"].reshape(-1).astype(dtype, copy=False)
    return dtype.type(1) + scale_d if one_plus else scale_d
