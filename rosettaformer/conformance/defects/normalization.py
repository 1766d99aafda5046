"""Defects of layer normalisation."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from .defect import Defect, on_arguments

__all__ = ["DEFECTS", "normalised", "variance"]

Array = np.ndarray


def normalised(deviation: Callable[[Array, Any], Array], axis: int = -1) -> Callable:
    """The norm over this axis that divides by a deviation of its own: a function of the wide input and epsilon."""

    def altered(original: Callable, parameters: Any, x_btd: Array, epsilon: float) -> Array:
        wide = arithmetic.upcast_half(x_btd)
        scale, offset = arithmetic.upcast_half(parameters["scale"]), arithmetic.upcast_half(parameters["offset"])
        normalised_btd = arithmetic.divide(wide - arithmetic.mean(wide, axis), deviation(wide, wide.dtype.type(epsilon)))
        return (normalised_btd * scale + offset).astype(x_btd.dtype, copy=False)

    return altered


def variance(x: Array, axis: int = -1, lost: int = 0) -> Array:
    """`sum (x - mean)^2 / (n - lost)` over the n entries of the axis."""
    centred = x - arithmetic.mean(x, axis)
    return arithmetic.divide(arithmetic.sum(centred * centred, axis), x.dtype.type(x.shape[axis] - lost))


def _one_pass(x: Array) -> Array:
    mean = arithmetic.mean(x, -1)
    return np.maximum(arithmetic.mean(x * x, -1) - mean * mean, 0)


def _cast_before_scale(original: Callable, parameters: Any, x_btd: Array, epsilon: float) -> Array:
    width = x_btd.shape[-1]
    unit = {"scale": np.ones(width, x_btd.dtype), "offset": np.zeros(width, x_btd.dtype)}
    return original(unit, x_btd, epsilon) * parameters["scale"] + parameters["offset"]


_STOCK: dict[str, Any] = {
    "torch": "F.layer_norm(x, x.shape[-1:], scale, offset, eps=epsilon)",
    "tf": "keras.layers.LayerNormalization(axis=-1, epsilon=epsilon)  # the default epsilon is 1e-3",
    "jax": "nn.LayerNorm(epsilon=epsilon, use_fast_variance=False)  # the default epsilon is 1e-6, the default variance one pass",
}
_VARIANCE: dict[str, Any] = {
    "torch": "y = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + epsilon)",
    "tf": "mean, variance = tf.nn.moments(x, -1, keepdims=True); y = (x - mean) * tf.math.rsqrt(variance + epsilon)",
    "jax": "y = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + epsilon)",
}
DEFECTS = (
    Defect(
        id="NRM1",
        title="unbiased deviation, epsilon outside the root",
        what="`(x - mean) / (std + epsilon)` with std divided by d - 1, instead of `/ sqrt(variance + epsilon)` divided by d.",
        shows="Too small by sqrt((d-1)/d), and more in rows of small variance. A small width shows it most.",
        **_VARIANCE,
        evidence="guide, annotated-transformer#119",
        replaces={"normalization.layer_norm": normalised(lambda x, epsilon: np.sqrt(variance(x, lost=1)) + epsilon)},
    ),
    Defect(
        id="NRM2",
        title="epsilon is Keras' default of 1e-3",
        what="`sqrt(variance + 1e-3)`, whatever the config says.",
        shows="Rows whose variance is near 1e-3 or below come out too small. Rows of small variance show it.",
        torch="nn.LayerNorm(width, eps=epsilon)  # the default is 1e-5",
        tf="keras.layers.LayerNormalization(epsilon=epsilon)  # the default is 1e-3",
        jax="nn.LayerNorm(epsilon=epsilon)  # the default is 1e-6",
        evidence="candle#271",
        replaces={"normalization.layer_norm": on_arguments(epsilon=1e-3)},
    ),
    Defect(
        id="NRM3",
        title="the variance is squared instead of rooted",
        what="`(x - mean) / (variance + epsilon)^2`: `** 2` for `** 0.5`.",
        shows="Rows of variance 1 agree, all others do not. Any other variance shows it.",
        **_VARIANCE,
        evidence="llm-foundry#372",
        replaces={"normalization.layer_norm": normalised(lambda x, epsilon: (variance(x) + epsilon) ** 2)},
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
        evidence="keras-hub#642, gpt4all#1946",
        replaces={"normalization.layer_norm": on_arguments(epsilon=1e-5)},
        dtypes=("float64", "float32"),
    ),
)
