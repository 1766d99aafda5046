"""Known bugs of the attention logits: their scale, and functions applied to them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from .alteration import Altered, Array, Replaces, Variants, on_arguments, on_call
from .kernels import PROJECTIONS

ATTENTION, QUERIES = "attention.scaled_dot_product_attention", "attention.queries"


def _all_queries_times(factor: Callable[[int, int, int], float]) -> Replaces:
    """Multiplies the projected queries by a function of d, h and k."""

    def times(original: Callable, parameters: Any, config: Any, query_btd: Array, *rest: Any) -> Array:
        query_bthk = original(parameters, config, query_btd, *rest)
        return query_bthk * query_bthk.dtype.type(factor(query_btd.shape[-1], *query_bthk.shape[2:]))

    return {QUERIES: times}


def _scaled(factor: Callable[[int, int, int], float], always: bool = False) -> Replaces:
    """Scales the logits by another factor, a function of h, k and e, if the config sets no scale.

    always: also drops the config's scale.
    """

    def change(query_bthk: Array, value_bsge: Array, scale: float | None, **others: Any) -> dict[str, Any]:
        if scale is not None:
            return {"scale": 1.0} if always else {}
        number = factor(query_bthk.shape[2], query_bthk.shape[3], value_bsge.shape[3])
        return {"query_bthk": query_bthk * query_bthk.dtype.type(number)}

    return {ATTENTION: on_call(change)}


def _scaled_by_length(length: Callable[[Array, Array], int]) -> Replaces:
    """Divides the logits by sqrt(length) instead of sqrt(k), unless the config sets a scale."""

    def change(query_bthk: Array, key_bsgk: Array, scale: float | None, **others: Any) -> dict[str, Any]:
        if scale is not None:
            return {}
        factor = (query_bthk.shape[3] / max(length(query_bthk, key_bsgk), 1)) ** 0.5
        return {"query_bthk": query_bthk * query_bthk.dtype.type(factor)}

    return {ATTENTION: on_call(change)}


def _bias_after_scale(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
    y, bias = original(subscripts, parameters, x), parameters.get("bias")
    if bias is None or subscripts != PROJECTIONS["query"]:
        return y
    return y + bias * bias.dtype.type(bias.shape[-1] ** 0.5 - 1)


def _softmax_of(change: Callable[[Array], Array]) -> Replaces:
    """Applies a function to the logits before the softmax."""
    return {"softmax.softmax": on_arguments(logits=lambda x: change(arithmetic.upcast_half(x)).astype(x.dtype, copy=False))}


def _capped(most: float) -> Replaces:
    return _softmax_of(lambda x: x.dtype.type(most) * np.tanh(x / x.dtype.type(most)))


def _clipped(most: float) -> Replaces:
    return _softmax_of(lambda x: np.clip(x, x.dtype.type(-most), x.dtype.type(most)))


def _with_distances(top_left: bool) -> Replaces:
    """Adds ALiBi biases, -|i - j| 2^(-8 n / h) for head n = 1 .. h. top_left: the alignment."""

    def change(query_bthk: Array, key_bsgk: Array, bias_bhts: Any, **others: Any) -> dict[str, Any]:
        target, heads, source = query_bthk.shape[1], query_bthk.shape[2], key_bsgk.shape[1]
        slope_h = arithmetic.power(2.0, -8.0 * np.arange(1, heads + 1) / heads)
        distance_ts = np.abs(np.arange(target)[:, None] + (0 if top_left else source - target) - np.arange(source))
        added_bhts = (-distance_ts * slope_h[:, None, None])[None].astype(query_bthk.dtype)
        return {"bias_bhts": added_bhts if bias_bhts is None else added_bhts + bias_bhts}

    return {ATTENTION: on_call(change)}


def _rotated(halves: bool) -> Replaces:
    """Applies RoPE if k is even. halves: pairs (i, i + k/2), otherwise (2i, 2i + 1)."""

    def turned(x: Array) -> Array:
        size = x.shape[3]
        angle = np.arange(x.shape[1])[:, None, None] * arithmetic.power(10000.0, -2.0 * np.arange(size // 2) / size)
        sine, cosine = np.sin(angle).astype(x.dtype), np.cos(angle).astype(x.dtype)
        first, second = (x[..., : size // 2], x[..., size // 2 :]) if halves else (x[..., 0::2], x[..., 1::2])
        pair = first * cosine - second * sine, second * cosine + first * sine
        return np.concatenate(pair, axis=-1) if halves else np.stack(pair, axis=-1).reshape(x.shape)

    def change(query_bthk: Array, key_bsgk: Array, **others: Any) -> dict[str, Any]:
        return {} if query_bthk.shape[3] % 2 else {"query_bthk": turned(query_bthk), "key_bsgk": turned(key_bsgk)}

    return {ATTENTION: on_call(change)}


ALTERED: Altered = {
    "ATT1": _scaled(lambda h, k, e: h**-0.5),
    "ATT2": _scaled(lambda h, k, e: (k / e) ** 0.5),
    "ATT3": _scaled(lambda h, k, e: k**0.5, always=True),
    "ATT31": _scaled_by_length(lambda query_bthk, key_bsgk: key_bsgk.shape[1]),
    "ATT32": {"attention.projection": _bias_after_scale},
    "ATT33": _clipped(5.0),
    "ATT34": _with_distances(top_left=False),
}
VARIANTS: Variants = {
    "ATT1": {
        "attention is scaled by the model width, sqrt(d)": _all_queries_times(lambda d, h, k: (k / d) ** 0.5),
        "attention is scaled by the model width d, without the root": _all_queries_times(lambda d, h, k: k**0.5 / d),
        "attention is scaled by the width of all heads, h k, without the root": _scaled(lambda h, k, e: k**-0.5 / h),
        "attention is scaled by the number of heads, sqrt(h)": _scaled(lambda h, k, e: (k / h) ** 0.5),
        "attention is scaled by sqrt(d // h), not the head size": _all_queries_times(lambda d, h, k: (k / max(d // h, 1)) ** 0.5),
    },
    "ATT2": {"attention is scaled by the value head's size e, without the root": _scaled(lambda h, k, e: k**0.5 / e)},
    "ATT3": {
        "attention is scaled by k instead of sqrt(k), or by sqrt(k) twice": _scaled(lambda h, k, e: k**-0.5),
        "the attention logits are multiplied by sqrt(k) instead of divided": _scaled(lambda h, k, e: float(k)),
        "attention is scaled by the fourth root of k": _scaled(lambda h, k, e: k**0.25),
        "attention is scaled by 8, the paper's sqrt(64), regardless of k": _scaled(lambda h, k, e: k**0.5 / 8),
    },
    "ATT31": {"attention is scaled by the number of queries, sqrt(t)": _scaled_by_length(lambda query_bthk, key_bsgk: query_bthk.shape[1])},
    "ATT33": {
        "the attention logits are clipped to [-10, 10]": _clipped(10.0),
        "the attention logits are clipped to [-50, 50]": _clipped(50.0),
        "the attention logits are 50 tanh(x / 50), as in Gemma 2": _capped(50.0),
        "the attention logits are 30 tanh(x / 30), as in Grok": _capped(30.0),
        "the attention logits are 10 tanh(x / 10)": _capped(10.0),
        "the softmax has base 2": _softmax_of(lambda x: x * x.dtype.type(np.log(2))),
        "a ReLU is applied to the attention logits": _softmax_of(lambda x: np.maximum(x, 0)),
    },
    "ATT34": {
        "an ALiBi distance penalty is subtracted from the logits (aligned top-left)": _with_distances(True),
        "RoPE is applied to queries and keys (pairs 2i, 2i + 1)": _rotated(False),
        "RoPE is applied to queries and keys (pairs i, i + k/2)": _rotated(True),
    },
}
