"""Constants of a model: rows of what `constants` fits, which say what is a number there and what it does."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from ..catalogue.combinators import on_arguments, on_call, on_result
from ..catalogue.fills import filled
from ..catalogue.positional_encoding import of_base


def _curve(change: Callable[[np.ndarray, float], np.ndarray], meant: str, value: float) -> Mapping[str, Callable]:
    def curve(original: Callable, x: np.ndarray, name: str) -> np.ndarray:
        return change(x, value).astype(x.dtype) if name == meant else original(x, name)

    return {"feed_forward.activation": curve}


def _where_given(name: str, value: float) -> Callable:
    """Replaces an argument that is not None."""
    return on_arguments(**{name: lambda given: None if given is None else value})


def _gelu(x: np.ndarray, root: float, cubic: float) -> np.ndarray:
    return 0.5 * x * (1 + arithmetic.tanh(root * (x + cubic * x**3)))


def _filled_and_zero(value: float) -> Callable:
    fill = filled(value)

    def altered(original: Callable, logits: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        weights = fill(original, logits, mask)
        return weights if mask is None else np.where(mask, weights, weights.dtype.type(0))

    return altered


def _larger_sum(weights: np.ndarray, value: float) -> np.ndarray:
    """`e / (sum e + value)`, with the largest exponential e that is 1, of the weights `e / sum e`."""
    largest = weights.max(axis=-1, keepdims=True, initial=0)
    return (weights / (1 + value * largest)).astype(weights.dtype, copy=False)


# id, component, title, where the fit begins, what the reference has, the functions that it replaces; True where its logarithm is fitted
MODEL: tuple[tuple[Any, ...], ...] = (
    (
        "attention.scale", "scaled_dot_product_attention", "the attention's logits are, besides the scale, multiplied by", 1.0,
        "the scale 1 / sqrt(key_size) and no further factor",
        lambda c: {"attention.scaled_dot_product_attention": on_arguments(query_bthk=lambda query: (query * c).astype(query.dtype))},
    ),
    (
        "epsilon", "layer_norm", "epsilon is", 1e-5, "the config's epsilon, or declare the model's in `config`",
        lambda c: {"normalization.layer_norm": on_arguments(epsilon=c)},
        True,
    ),
    (
        "rms_norm.epsilon", "rms_norm", "epsilon of the RMS norm is", 1e-5, "the config's epsilon (rms_norm_eps)",
        lambda c: {"normalization.rms_norm": on_arguments(epsilon=c)},
        True,
    ),
    (
        "rotary.base", "rotary_embedding", "the base of the rotary frequencies is", 10000.0, "the config's base (rope_theta)",
        lambda c: {"rotary.rotary_frequencies": on_arguments(base=c)},
        True,
    ),
    (
        "rotary.factor", "rotary_embedding", "positions are, before they rotate, multiplied by", 1.0, "the positions as they are",
        lambda c: {"rotary.rotation": on_arguments(position_bt=lambda position: position * c)},
    ),
    (
        "score_cap", "scaled_dot_product_attention", "the cap of the attention's logits is", 50.0, "the config's attn_logit_softcapping",
        lambda c: {"attention.scaled_dot_product_attention": _where_given("cap", c)},
        True,
    ),
    (
        "logit_cap", "logits", "the cap of the next token's logits is", 30.0, "the config's final_logit_softcapping",
        lambda c: {"embedding.logits": _where_given("cap", c)},
        True,
    ),
    (
        "positions.base", "positional_encoding", "the base of the positions' wavelengths is", 10000.0,
        "the base 10000",
        of_base,
        True,
    ),
    (
        "positions.factor", "positional_encoding", "positions are, before they become angles, multiplied by", 1.0,
        "the positions as they are",
        lambda c: {"positional_encoding.positional_encoding": on_arguments(position_bt=lambda position: position * c)},
    ),
    (
        "gelu_tanh.root", "activation", "in the tanh form of GELU the factor of the sum, sqrt(2/pi), is", (2 / math.pi) ** 0.5,
        "sqrt(2 / pi) = 0.797885",
        lambda c: _curve(lambda x, root: _gelu(x, root, 0.044715), "gelu_tanh", c),
    ),
    (
        "gelu_tanh.cubic", "activation", "in the tanh form of GELU the factor of the cube, 0.044715, is", 0.044715,
        "0.044715",
        lambda c: _curve(lambda x, cubic: _gelu(x, (2 / math.pi) ** 0.5, cubic), "gelu_tanh", c),
    ),
    (
        "relu.slope", "activation", "the slope of ReLU below 0 is", 0.0, "max(x, 0)",
        lambda c: _curve(lambda x, slope: np.where(x > 0, x, slope * x), "relu", c),
    ),
    (
        "mask.fill", "softmax", "masked logits become", 0.0,
        "minus infinity for masked logits, and zeros in a row that may attend to nothing",
        lambda c: {"softmax.softmax": filled(c)},
    ),
    (
        "mask.share", "softmax", "the weights of masked keys become 0 after a softmax in which their logits are", 0.0,
        "minus infinity for masked logits, before the softmax",
        lambda c: {"softmax.softmax": _filled_and_zero(c)},
    ),
    (
        "softmax.sum", "softmax", "the sum of exponentials that the softmax divides by is larger by", 0.0,
        "the sum of the exponentials",
        lambda c: {"softmax.softmax": on_result(lambda weights: _larger_sum(weights, c))},
    ),
    (
        "residual.input", "encoder_layer", "in the residual sum the sub-layer's input is multiplied by", 1.0,
        "the sub-layer's input as it is",
        lambda c: {"layers.residual_out": on_call(lambda x_btd, **others: {"x_btd": (x_btd * c).astype(x_btd.dtype)})},
    ),
    (
        "residual.output", "encoder_layer", "in the residual sum the sub-layer's output is multiplied by", 1.0,
        "the sub-layer's output as it is",
        lambda c: {"layers.residual_out": on_call(lambda y_btd, **others: {"y_btd": (y_btd * c).astype(y_btd.dtype)})},
    ),
    (
        "embedding.factor", "embedding", "the embedding is, besides its scale, multiplied by", 1.0,
        "the config's scale and no further factor",
        lambda c: {"embedding.embedding": on_result(lambda x_btd: (x_btd * c).astype(x_btd.dtype))},
    ),
    (
        "logits.factor", "logits", "the logits are multiplied by", 1.0, "the logits as they are",
        lambda c: {"embedding.logits": on_result(lambda logits: (logits * c).astype(logits.dtype))},
    ),
)  # fmt: skip
