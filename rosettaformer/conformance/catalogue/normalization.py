"""Defects of layer normalisation: its axes, its mean, its parameters, its precision."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from .defect import CONFIGURED, LOADED, Defect, on_arguments
from .deviation import normalised, variance

__all__ = ["DEFECTS"]

Array = np.ndarray


def _over(*axes: int) -> Callable:
    """The norm over these axes together."""

    def altered(original: Callable, parameters: Any, x_btd: Array, epsilon: float) -> Array:
        wide, size = arithmetic.upcast_half(x_btd), np.prod([x_btd.shape[axis] for axis in axes])
        if not size:
            return original(parameters, x_btd, epsilon)
        centred = wide - np.sum(wide, axis=axes, keepdims=True) / wide.dtype.type(size)
        deviation = np.sqrt(np.sum(centred * centred, axis=axes, keepdims=True) / wide.dtype.type(size) + wide.dtype.type(epsilon))
        y_btd = centred / deviation * arithmetic.upcast_half(parameters["scale"]) + arithmetic.upcast_half(parameters["offset"])
        return y_btd.astype(x_btd.dtype, copy=False)

    return altered


def _with(change: Callable[[Any], dict[str, Array]]) -> dict[str, Callable]:
    """The norm with other parameters."""
    return {"normalization.layer_norm": on_arguments(parameters=change)}


def _root_mean_square(x: Array, epsilon: Any) -> Array:
    return np.sqrt(arithmetic.mean(x * x, -1) + epsilon)


def _one_pass(x: Array) -> Array:
    mean = arithmetic.mean(x, -1)
    return np.maximum(arithmetic.mean(x * x, -1) - mean * mean, 0)


def _cast_before_scale(original: Callable, parameters: Any, x_btd: Array, epsilon: float) -> Array:
    width = x_btd.shape[-1]
    unit = {"scale": np.ones(width, x_btd.dtype), "offset": np.zeros(width, x_btd.dtype)}
    return original(unit, x_btd, epsilon) * parameters["scale"] + parameters["offset"]


def _without_offset(original: Callable, parameters: Any, x_btd: Array, epsilon: float) -> Array:
    own = {"scale": parameters["scale"], "offset": np.zeros_like(parameters["offset"])}
    return normalised(_root_mean_square, mean=False)(original, own, x_btd, epsilon)


_STOCK: dict[str, Any] = {
    "torch": "F.layer_norm(x, x.shape[-1:], scale, offset, eps=epsilon)",
    "tf": "keras.layers.LayerNormalization(axis=-1, epsilon=epsilon)  # the default epsilon is 1e-3",
    "jax": "nn.LayerNorm(epsilon=epsilon, use_fast_variance=False)  # the default epsilon is 1e-6, the default variance one pass",
}
DEFECTS = (
    Defect(
        id="NRM2",
        title="epsilon is Keras' default of 1e-3",
        what="`sqrt(variance + 1e-3)`, or `sqrt(variance)`, whatever the config says. Without epsilon a constant row is NaN or noise.",
        shows="Rows whose variance is near 1e-3 or below come out too small. Rows of small variance show it.",
        torch="nn.LayerNorm(width, eps=epsilon)  # the default is 1e-5",
        tf="keras.layers.LayerNormalization(epsilon=epsilon)  # the default is 1e-3",
        jax="nn.LayerNorm(epsilon=epsilon)  # the default is 1e-6",
        undetermined=True,
        elsewhere=CONFIGURED,
        variants={"the norm has no epsilon": {"normalization.layer_norm": on_arguments(epsilon=0.0)}},
        evidence="candle#271",
        replaces={"normalization.layer_norm": on_arguments(epsilon=1e-3)},
    ),
    Defect(
        id="NRM4",
        title="the variance is E[x^2] - E[x]^2",
        what="One pass: two large numbers are subtracted, and what is left has lost the digits of the mean.",
        shows="Rows whose mean is far from 0 have a wrong or even negative variance. Rows of mean 100 show it in float32 and below.",
        torch="variance = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)",
        tf="variance = tf.reduce_mean(tf.square(x - tf.reduce_mean(x, -1, keepdims=True)), -1, keepdims=True)",
        jax="nn.LayerNorm(epsilon=epsilon, use_fast_variance=False)",
        evidence="burn#5607, equinox#314, pytorch#55044",
        replaces={"normalization.layer_norm": normalised(lambda x, epsilon: np.sqrt(_one_pass(x) + epsilon))},
    ),
    Defect(
        id="NRM5",
        title="normalised over the positions",
        what="Mean and variance are taken over the axis t instead of d.",
        shows="A token's output depends on the other tokens. More than one position shows it.",
        **_STOCK,
        variants={
            "normalised over the batch": {"normalization.layer_norm": _over(0)},
            "normalised over positions and features": {"normalization.layer_norm": _over(1, 2)},
            "normalised over batch and positions, as a batch norm": {"normalization.layer_norm": _over(0, 1)},
            "normalised over everything": {"normalization.layer_norm": _over(0, 1, 2)},
        },
        evidence="jadore801120#17",
        replaces={"normalization.layer_norm": normalised(lambda x, epsilon: np.sqrt(variance(x, 1) + epsilon), axis=1)},
    ),
    Defect(
        id="NRM7",
        title="cast to the half-precision dtype before scale and offset",
        what="The normalised value is rounded to the half-precision dtype, then multiplied and shifted in it: three roundings for one.",
        shows="Where the offset nearly cancels the scaled value, half-precision dtypes lose digits. Large scales with opposite offsets "
        "show it.",
        torch="y = (normalised.float() * scale.float() + offset.float()).to(x.dtype)",
        tf="y = tf.cast(normalised * tf.cast(scale, tf.float32) + tf.cast(offset, tf.float32), x.dtype)",
        jax="y = (normalised * scale.astype(jnp.float32) + offset.astype(jnp.float32)).astype(x.dtype)",
        evidence="TransformerEngine#1132",
        replaces={"normalization.layer_norm": _cast_before_scale},
        dtypes=("bfloat16", "float16"),
        rounding=True,
    ),
    Defect(
        id="NRM15",
        title="BERT's epsilon of 1e-12 is the layer's default of 1e-5",
        what="`sqrt(variance + 1e-5)`, whatever the config says.",
        shows="Rows of variance 1 are off by 5e-6, rows of small variance by much. float64, or rows of small variance, show it.",
        torch="nn.LayerNorm(width, eps=epsilon)  # the default is 1e-5",
        tf="keras_hub.layers.TransformerEncoder(layer_norm_epsilon=epsilon)  # the default is 1e-5",
        jax="nn.LayerNorm(epsilon=epsilon)  # the default is 1e-6",
        elsewhere=CONFIGURED,
        evidence="keras-hub#642, gpt4all#1946",
        replaces={"normalization.layer_norm": on_arguments(epsilon=1e-5)},
        dtypes=("float64", "float32"),
    ),
    Defect(
        id="NRM20",
        title="the mean is not subtracted: RMS norm",
        what="`x / sqrt(mean(x^2) + epsilon)` instead of `(x - mean) / sqrt(variance + epsilon)`.",
        shows="Nothing where the mean is 0. Rows whose mean is not 0 show it.",
        variants={
            "the mean is not subtracted, and there is no offset: RMSNorm": {"normalization.layer_norm": _without_offset},
            "the mean is subtracted in the variance alone": {
                "normalization.layer_norm": normalised(lambda x, epsilon: np.sqrt(variance(x) + epsilon), mean=False)
            },
            "the mean is not subtracted in the variance": {"normalization.layer_norm": normalised(_root_mean_square)},
        },
        **_STOCK,
        evidence="keras#21234, omniserve#32",
        replaces={"normalization.layer_norm": normalised(_root_mean_square, mean=False)},
    ),
    Defect(
        id="NRM21",
        title="1 is added to the norm's scale",
        what="`(1 + scale) (x - mean) / sqrt(variance + epsilon) + offset`: the checkpoint's scale is taken for its difference from 1, as "
        "Gemma stores it.",
        shows="Every output is too large by the normalised input. Any input shows it.",
        elsewhere=LOADED,
        variants={
            "1 is subtracted from the norm's scale": _with(lambda p: {"scale": p["scale"] - 1, "offset": p["offset"]}),
            "the norm's scale and offset are exchanged": _with(lambda p: {"scale": p["offset"], "offset": p["scale"]}),
            "the norm's offset is added before the scale": _with(lambda p: {"scale": p["scale"], "offset": p["scale"] * p["offset"]}),
            "the norm's offset is subtracted": _with(lambda p: {"scale": p["scale"], "offset": -p["offset"]}),
        },
        **_STOCK,
        evidence="mold#1078, shainet#176, mlx-vlm#2041",
        replaces=_with(lambda p: {"scale": p["scale"] + 1, "offset": p["offset"]}),
    ),
)
