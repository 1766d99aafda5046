"""The table of constants of the reference that `constants` fits."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from ...catalogue.alteration import on_arguments, on_call, on_result
from ...catalogue.fills import filled
from ...catalogue.loss import BOTH
from ...catalogue.optimizer import Rate, other_rate
from ...catalogue.positional_encoding import of_base

Altered = Callable[[float], Mapping[str, Callable]]  # from a value to the functions that it replaces


def _curve(change: Callable[[np.ndarray, float], np.ndarray], meant: str) -> Altered:
    """Replaces the activation of this name with a function of x and the value."""

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
    """`e / (sum e + value)`, given the weights `e / sum e`; the largest exponential e is 1."""
    largest = weights.max(axis=-1, keepdims=True, initial=0)
    return (weights / (1 + value * largest)).astype(weights.dtype, copy=False)


def _times(place: str, argument: str) -> Altered:
    """Multiplies an argument by the value."""
    return lambda c: {place: on_arguments(**{argument: lambda value: _multiplied(value, c)})}


def _given(place: str, argument: str) -> Altered:
    """Replaces an argument with the value."""
    return lambda c: {place: on_arguments(**{argument: c})}


def _result_times(*places: str) -> Altered:
    """Multiplies a result by the value, or every array of a mapping."""
    return lambda c: dict.fromkeys(places, on_result(lambda result: _multiplied(result, c)))


def _multiplied(value: Any, c: float) -> Any:
    if isinstance(value, Mapping):
        return {name: _multiplied(one, c) for name, one in value.items()}
    floats = isinstance(value, np.ndarray) and value.dtype.kind in "fV"
    return (value * c).astype(value.dtype) if floats else value * c


def _scaling_times(field: str) -> Altered:
    """Multiplies a parameter of RoPE's scaling by the value, where it has one."""

    def of(c: float) -> Mapping[str, Callable]:
        def scaled(scaling: Any) -> Any:
            changed = copy.copy(scaling)
            if (number := getattr(scaling, field)) is not None:
                object.__setattr__(changed, field, number * c)  # not a whole number of tokens, while it is fitted
            return changed

        return {"rotary.rotary_frequencies": on_arguments(scaling=scaled)}

    return of


def _rate(rate: Callable[[float], Rate]) -> Altered:
    return lambda c: {"schedule.noam": other_rate(rate(c))}


ATTENTION, SOFTMAX = "attention.scaled_dot_product_attention", "softmax.softmax"
ADAM, CLIP = "optimizer.adam", "optimizer.clip_global_norm"
RESIDUAL, ENCODING = "layers.residual_out", "positional_encoding.positional_encoding"
# id, component, title, start of the fit, the reference's value in words, replaced functions;
# True if the logarithm is fitted
CONSTANTS: tuple[tuple[Any, ...], ...] = (
    ("attention.scale", "scaled_dot_product_attention",
     "in addition to the scale, the attention logits are multiplied by", 1.0,
     "the scale 1 / sqrt(key_size) and no further factor", _times(ATTENTION, "query_bthk")),
    ("epsilon", "layer_norm", "epsilon is", 1e-5, "the config's epsilon, or declare the model's epsilon in `config`",
     _given("normalization.layer_norm", "epsilon"), True),
    ("rms_norm.epsilon", "rms_norm", "epsilon of the RMS norm is", 1e-5,
     "the config's epsilon (rms_norm_eps)", _given("normalization.rms_norm", "epsilon"), True),
    ("rotary.base", "rotary_embedding", "the base of the rotary frequencies is", 10000.0,
     "the config's base (rope_theta)", _given("rotary.rotary_frequencies", "base"), True),
    ("rotary.factor", "rotary_embedding", "before the rotation, positions are multiplied by", 1.0,
     "the positions unchanged", _times("rotary.rotation", "position_bt")),
    *((f"rotary_scaling.{field}", "rotary_embedding", f"RoPE's {field} is multiplied by", 1.0, f"the config's {field}",
       _scaling_times(field), True)
      for field in ("factor", "original_length", "low_frequency_factor", "high_frequency_factor", "beta_fast", "beta_slow")),
    ("score_cap", "scaled_dot_product_attention", "the cap of the attention logits is", 50.0,
     "the config's attn_logit_softcapping", _where_given(ATTENTION, "cap"), True),
    ("logit_cap", "logits", "the cap of the output logits is", 30.0,
     "the config's final_logit_softcapping", _where_given("embedding.logits", "cap"), True),
    ("positions.base", "positional_encoding", "the base of the sinusoids' wavelengths is", 10000.0,
     "the base 10000", of_base, True),
    ("positions.factor", "positional_encoding", "in the sinusoids, positions are multiplied by",
     1.0, "the positions unchanged", _times(ENCODING, "position_bt")),
    ("gelu_tanh.root", "activation", "in the tanh form of GELU, the factor of the sum, sqrt(2/pi), is",
     (2 / math.pi) ** 0.5, "sqrt(2 / pi) = 0.797885",
     _curve(lambda x, root: _gelu(x, root, 0.044715), "gelu_tanh")),
    ("gelu_tanh.cubic", "activation", "in the tanh form of GELU, the factor of the cube, 0.044715, is",
     0.044715, "0.044715", _curve(lambda x, cubic: _gelu(x, (2 / math.pi) ** 0.5, cubic), "gelu_tanh")),
    ("relu.slope", "activation", "the slope of ReLU below 0 is", 0.0, "max(x, 0)",
     _curve(lambda x, slope: np.where(x > 0, x, slope * x), "relu")),
    ("mask.fill", "softmax", "masked logits become", 0.0,
     "minus infinity for masked logits, and zero weights in a row without keys", lambda c: {SOFTMAX: filled(c)}),
    ("mask.share", "softmax", "masked weights are set to 0 only after the softmax; before it, masked logits are",
     0.0, "minus infinity for masked logits, before the softmax", lambda c: {SOFTMAX: _filled_and_zero(c)}),
    ("softmax.sum", "softmax", "to the sum of exponentials in the softmax is added", 0.0,
     "the plain sum of exponentials", lambda c: {SOFTMAX: on_result(lambda weights: _larger_sum(weights, c))}),
    ("residual.input", "encoder_layer", "in the residual sum, the sub-layer's input is multiplied by", 1.0,
     "the sub-layer's input unchanged", _times(RESIDUAL, "x_btd")),
    ("residual.output", "encoder_layer", "in the residual sum, the sub-layer's output is multiplied by", 1.0,
     "the sub-layer's output unchanged", _times(RESIDUAL, "y_btd")),
    ("embedding.factor", "embedding", "in addition to its scale, the embedding is multiplied by", 1.0,
     "the config's scale and no further factor", _result_times("embedding.embedding")),
    ("logits.factor", "logits", "the logits are multiplied by", 1.0, "the logits unchanged",
     _result_times("embedding.logits")),
    ("rate.factor", "noam", "the learning rate is multiplied by", 1.0, "the learning rate unchanged",
     _result_times("schedule.noam")),
    ("rate.power", "noam", "after the warm-up, the rate falls with n / warmup to the power of",
     -0.5, "the power -1/2",
     _rate(lambda c: lambda n, d, w: d**-0.5 * np.where(n > w, w**-0.5 * (n / w) ** c, n * w**-1.5))),
    ("rate.fall", "noam", "after the warm-up, the rate falls linearly, per step by the share", 0.0,
     "n^-1/2 after the warm-up",
     _rate(lambda c: lambda n, d, w: d**-0.5 * np.where(n > w, w**-0.5 * (1 - c * (n - w)), n * w**-1.5))),
    ("rate.offset", "noam", "steps are counted with an offset of", 0.0, "steps counted from 1",
     _rate(lambda c: lambda n, d, w: d**-0.5 * np.minimum((n + c) ** -0.5, (n + c) * w**-1.5))),
    ("adam.rate", "adam", "in addition to the learning rate, the update is multiplied by", 1.0, "the learning rate unchanged",
     _times(ADAM, "learning_rate")),
    ("adam.decay", "adam", "the weight decay is multiplied by", 1.0, "the weight decay unchanged",
     _times(ADAM, "weight_decay")),
    ("adam.beta_1", "adam", "beta_1 is", 0.9, "the beta_1 argument", _given(ADAM, "beta_1")),
    ("adam.epsilon", "adam", "Adam's epsilon is", 1e-8, "the epsilon argument", _given(ADAM, "epsilon"),
     True),
    ("clip.limit", "clip_global_norm", "the limit is multiplied by", 1.0, "the limit argument",
     _times(CLIP, "limit")),
    ("loss.factor", "cross_entropy", "the loss is multiplied by", 1.0, "the loss unchanged",
     _result_times(*BOTH)),
    ("loss.smoothing", "cross_entropy", "the smoothing is multiplied by", 1.0, "the smoothing argument",
     lambda c: dict.fromkeys(BOTH, on_call(lambda smoothing, **others: {"smoothing": min(max(smoothing * c, 0.0), 1.0)}))),
)  # fmt: skip
