"""Defects of soft caps, and of the scales that a config states: of the attention's logits and of those of the next token."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, attention, softmax

from ..reference.patching import patched
from .alteration import Altered, Replaces, Variants
from .combinators import bound, on_arguments, on_call

Array = np.ndarray
ATTENTION, CAP, HEAD = "attention.scaled_dot_product_attention", "softmax.soft_cap", "embedding.logits"


def _curve(curve: Callable[[Array, Any], Array]) -> Replaces:
    """Another function of the logits and the cap."""

    def altered(original: Callable, x: Array, cap: float) -> Array:
        wide = arithmetic.upcast_half(x)
        return curve(wide, wide.dtype.type(cap)).astype(x.dtype, copy=False)

    return {CAP: altered}


def _within(function: str, replaces: Replaces) -> Replaces:
    """Replaces these functions within another one alone."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        with patched(replaces):
            return original(*args, **options)

    return {function: altered}


def _after_the_mask(original: Callable, *args: Any, **options: Any) -> Any:
    given = bound(original, *args, **options)
    cap = given.pop("cap")

    def capped(probabilities: Callable, logits: Array, mask: Any = None) -> Array:
        hidden = logits if mask is None else np.where(mask, logits, logits.dtype.type(-np.inf))
        return probabilities(hidden if cap is None else softmax.soft_cap(hidden, cap), mask if cap is None else None)

    with patched({"softmax.softmax": capped}):
        return original(**given, cap=None)


def _before_the_scale(original: Callable, query_bthk: Array, key_bshk: Array, bias_bhts: Any, scale: Any, cap: Any) -> Array:
    if cap is None:
        return original(query_bthk, key_bshk, bias_bhts, scale, cap)
    capped = original(query_bthk, key_bshk, None, 1.0, cap)
    scaled = capped * capped.dtype.type(attention._scale(query_bthk, scale))
    return scaled if bias_bhts is None else scaled + arithmetic.upcast_half(bias_bhts)


def _score_scale(change: Callable[[float, int], float]) -> Replaces:
    """Scales by a function of the scale that is stated, and of k."""

    def other(scale: Any, query_bthk: Array, **others: Any) -> dict[str, Any]:
        return {} if scale is None else {"scale": change(scale, query_bthk.shape[3])}

    return {ATTENTION: on_call(other)}


def _cap_before_the_scale(original: Callable, parameters: Any, x_btd: Array, scale: float = 1.0, cap: Any = None) -> Array:
    if cap is None:
        return original(parameters, x_btd, scale, cap)
    capped_btv = original(parameters, x_btd, 1.0, cap)
    return (arithmetic.upcast_half(capped_btv) * arithmetic.upcast_half(capped_btv).dtype.type(scale)).astype(x_btd.dtype, copy=False)


_UNBOUND = _curve(lambda x, cap: x * arithmetic.tanh(x / cap))
ALTERED: Altered = {
    "CAP1": {ATTENTION: on_arguments(cap=None)},
    "CAP2": {ATTENTION: _after_the_mask},
    "CAP3": _UNBOUND,
    "CAP4": {"attention._logits": _before_the_scale},
    "CAP5": {HEAD: on_arguments(cap=None)},
    "CAP6": {HEAD: on_arguments(scale=1.0)},
    "ATT37": {ATTENTION: on_arguments(scale=None)},
}
VARIANTS: Variants = {
    "CAP3": {
        "the cap is tanh(x / cap), not multiplied by the cap": _curve(lambda x, cap: arithmetic.tanh(x / cap)),
        "the cap is cap tanh(x), not divided by the cap": _curve(lambda x, cap: cap * arithmetic.tanh(x)),
        "the cap clips at -cap and cap": _curve(lambda x, cap: np.clip(x, -cap, cap)),
        "the soft cap of the attention's logits alone is x tanh(x / cap)": _within(ATTENTION, _UNBOUND),
        "the soft cap of the next token's logits alone is x tanh(x / cap)": _within(HEAD, _UNBOUND),
    },
    "CAP5": {"the logits are capped before they are scaled": {HEAD: _cap_before_the_scale}},
    "CAP6": {"the logits are divided by their scale": {HEAD: on_arguments(scale=lambda scale: 1 / scale)}},
    "ATT37": {
        "the logits of the attention are scaled by 1 / sqrt(k), too": _score_scale(lambda scale, size: scale * size**-0.5),
        "the logits of the attention are divided by the scale": _score_scale(lambda scale, size: 1 / scale),
        "the scale of the attention lacks its root: it is squared": _score_scale(lambda scale, size: scale * scale),
    },
}
