"""Constants of a model: rows of what `constants` fits, which say what is a number there and what it does."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from ..catalogue.alteration import on_arguments, on_result
from ..catalogue.fills import filled
from ..catalogue.positional_encoding import of_base

Altered = Callable[[float], Mapping[str, Callable]]  # of a value: the functions that it replaces


def _curve(change: Callable[[np.ndarray, float], np.ndarray], meant: str) -> Altered:
    """The activation of a name, a function of x and the value."""

    def of(c: float) -> Mapping[str, Callable]:
        def curve(original: Callable, x: np.ndarray, name: str) -> np.ndarray:
            return change(x, c).astype(x.dtype) if name == meant else original(x, name)

        return {"feed_forward.activation": curve}

    return of


def _where_given(place: str, name: str) -> Altered:
    """Replaces an argument that is not None."""
    return lambda c: {place: on_arguments(**{name: lambda given: None if given is None else c})}


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


def times(place: str, argument: str) -> Altered:
    """An argument that is multiplied."""
    return lambda c: {place: on_arguments(**{argument: lambda value: _multiplied(value, c)})}


def given(place: str, argument: str) -> Altered:
    """An argument that is a number, whatever is given."""
    return lambda c: {place: on_arguments(**{argument: c})}


def result_times(*places: str) -> Altered:
    """A result that is multiplied; of a mapping each of its arrays."""
    return lambda c: dict.fromkeys(places, on_result(lambda result: _multiplied(result, c)))


def _multiplied(value: Any, c: float) -> Any:
    if isinstance(value, Mapping):
        return {name: _multiplied(one, c) for name, one in value.items()}
    floats = isinstance(value, np.ndarray) and value.dtype.kind in "fV"
    return (value * c).astype(value.dtype) if floats else value * c


ATTENTION, SOFTMAX = "attention.scaled_dot_product_attention", "softmax.softmax"
RESIDUAL, ENCODING = "layers.residual_out", "positional_encoding.positional_encoding"
# id, component, title, where the fit begins, what the reference has, the functions that it replaces; True where its logarithm is fitted
MODEL: tuple[tuple[Any, ...], ...] = (
    ("attention.scale", "scaled_dot_product_attention",
     "the attention's logits are, besides the scale, multiplied by", 1.0,
     "the scale 1 / sqrt(key_size) and no further factor", times(ATTENTION, "query_bthk")),
    ("epsilon", "layer_norm", "epsilon is", 1e-5, "the config's epsilon, or declare the model's in `config`",
     given("normalization.layer_norm", "epsilon"), True),
    ("rms_norm.epsilon", "rms_norm", "epsilon of the RMS norm is", 1e-5,
     "the config's epsilon (rms_norm_eps)", given("normalization.rms_norm", "epsilon"), True),
    ("rotary.base", "rotary_embedding", "the base of the rotary frequencies is", 10000.0,
     "the config's base (rope_theta)", given("rotary.rotary_frequencies", "base"), True),
    ("rotary.factor", "rotary_embedding", "positions are, before they rotate, multiplied by", 1.0,
     "the positions as they are", times("rotary.rotation", "position_bt")),
    ("score_cap", "scaled_dot_product_attention", "the cap of the attention's logits is", 50.0,
     "the config's attn_logit_softcapping", _where_given(ATTENTION, "cap"), True),
    ("logit_cap", "logits", "the cap of the next token's logits is", 30.0,
     "the config's final_logit_softcapping", _where_given("embedding.logits", "cap"), True),
    ("positions.base", "positional_encoding", "the base of the positions' wavelengths is", 10000.0,
     "the base 10000", of_base, True),
    ("positions.factor", "positional_encoding", "positions are, before they become angles, multiplied by",
     1.0, "the positions as they are", times(ENCODING, "position_bt")),
    ("gelu_tanh.root", "activation", "in the tanh form of GELU the factor of the sum, sqrt(2/pi), is",
     (2 / math.pi) ** 0.5, "sqrt(2 / pi) = 0.797885",
     _curve(lambda x, root: _gelu(x, root, 0.044715), "gelu_tanh")),
    ("gelu_tanh.cubic", "activation", "in the tanh form of GELU the factor of the cube, 0.044715, is",
     0.044715, "0.044715", _curve(lambda x, cubic: _gelu(x, (2 / math.pi) ** 0.5, cubic), "gelu_tanh")),
    ("relu.slope", "activation", "the slope of ReLU below 0 is", 0.0, "max(x, 0)",
     _curve(lambda x, slope: np.where(x > 0, x, slope * x), "relu")),
    ("mask.fill", "softmax", "masked logits become", 0.0,
     "minus infinity for masked logits, and zeros in a row that may attend to nothing", lambda c: {SOFTMAX: filled(c)}),
    ("mask.share", "softmax", "the weights of masked keys become 0 after a softmax in which their logits are",
     0.0, "minus infinity for masked logits, before the softmax", lambda c: {SOFTMAX: _filled_and_zero(c)}),
    ("softmax.sum", "softmax", "the sum of exponentials that the softmax divides by is larger by", 0.0,
     "the sum of the exponentials", lambda c: {SOFTMAX: on_result(lambda weights: _larger_sum(weights, c))}),
    ("residual.input", "encoder_layer", "in the residual sum the sub-layer's input is multiplied by", 1.0,
     "the sub-layer's input as it is", times(RESIDUAL, "x_btd")),
    ("residual.output", "encoder_layer", "in the residual sum the sub-layer's output is multiplied by", 1.0,
     "the sub-layer's output as it is", times(RESIDUAL, "y_btd")),
    ("embedding.factor", "embedding", "the embedding is, besides its scale, multiplied by", 1.0,
     "the config's scale and no further factor", result_times("embedding.embedding")),
    ("logits.factor", "logits", "the logits are multiplied by", 1.0, "the logits as they are",
     result_times("embedding.logits")),
)  # fmt: skip
