"""Defects of the attention's logits: their scale, and functions of them."""

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
    """Scales the logits, besides 1 / sqrt(k), by a function of h, k and e, where no scale is given. always: leaves a given one out."""

    def change(query_bthk: Array, value_bsge: Array, scale: float | None, **others: Any) -> dict[str, Any]:
        if scale is not None:
            return {"scale": 1.0} if always else {}
        number = factor(query_bthk.shape[2], query_bthk.shape[3], value_bsge.shape[3])
        return {"query_bthk": query_bthk * query_bthk.dtype.type(number)}

    return {ATTENTION: on_call(change)}


def _scaled_by_length(length: Callable[[Array, Array], int]) -> Replaces:
    """Divides the logits by the root of a length, a function of queries and keys, instead of by sqrt(k), where no scale is given."""

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
    """ALiBi: -|i - j| 2^(-8 n / h) is added to the logits of head n = 1 .. h, the first query at the first key or the last at the last."""

    def change(query_bthk: Array, key_bsgk: Array, bias_bhts: Any, **others: Any) -> dict[str, Any]:
        target, heads, source = query_bthk.shape[1], query_bthk.shape[2], key_bsgk.shape[1]
        slope_h = arithmetic.power(2.0, -8.0 * np.arange(1, heads + 1) / heads)
        distance_ts = np.abs(np.arange(target)[:, None] + (0 if top_left else source - target) - np.arange(source))
        added_bhts = (-distance_ts * slope_h[:, None, None])[None].astype(query_bthk.dtype)
        return {"bias_bhts": added_bhts if bias_bhts is None else added_bhts + bias_bhts}

    return {ATTENTION: on_call(change)}


def _rotated(halves: bool) -> Replaces:
    """Rotates query and key by their positions: entries 2i and 2i+1, or i and i + k/2, by p / 10000^(2i/k), if k is even."""

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
        "scaled by sqrt(d) of the model": _all_queries_times(lambda d, h, k: (k / d) ** 0.5),
        "scaled by d of the model, without a root": _all_queries_times(lambda d, h, k: k**0.5 / d),
        "scaled by h k, without a root": _scaled(lambda h, k, e: k**-0.5 / h),
        "scaled by sqrt(h) of the heads": _scaled(lambda h, k, e: (k / h) ** 0.5),
        "scaled by sqrt(d // h), where a head's size is another one": _all_queries_times(lambda d, h, k: (k / max(d // h, 1)) ** 0.5),
    },
    "ATT2": {"scaled by e of the value head, without a root": _scaled(lambda h, k, e: k**0.5 / e)},
    "ATT3": {
        "scaled by k, without a root (or by sqrt(k) twice)": _scaled(lambda h, k, e: k**-0.5),
        "the logits are multiplied by sqrt(k)": _scaled(lambda h, k, e: float(k)),
        "scaled by the fourth root of k": _scaled(lambda h, k, e: k**0.25),
        "scaled by 8, the paper's sqrt(64), whatever k is": _scaled(lambda h, k, e: k**0.5 / 8),
    },
    "ATT31": {"scaled by sqrt(t) of the queries' number": _scaled_by_length(lambda query_bthk, key_bsgk: query_bthk.shape[1])},
    "ATT33": {
        "the logits of the attention are clipped to -10 .. 10": _clipped(10.0),
        "the logits of the attention are clipped to -50 .. 50": _clipped(50.0),
        "the logits of the attention are 50 tanh(x / 50), as in Gemma 2": _capped(50.0),
        "the logits of the attention are 30 tanh(x / 30), as in Grok": _capped(30.0),
        "the logits of the attention are 10 tanh(x / 10)": _capped(10.0),
        "the softmax has base 2": _softmax_of(lambda x: x * x.dtype.type(np.log(2))),
        "the logits of the attention are those above 0: ReLU before the softmax": _softmax_of(lambda x: np.maximum(x, 0)),
    },
    "ATT34": {
        "the distance of query and key is subtracted from the logits, the first query at the first key": _with_distances(True),
        "rotary positions turn query and key, entries 2i and 2i + 1": _rotated(False),
        "rotary positions turn query and key, entries i and i + k/2": _rotated(True),
    },
}
