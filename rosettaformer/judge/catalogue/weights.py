"""Known bugs of attention weights (softmax, masks) and of the sliding window."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, mask

from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, on_arguments, on_call, on_result
from .fills import uniform_when_empty

SOFTMAX, ATTENTION = "softmax.softmax", "attention.scaled_dot_product_attention"


def _elementwise(function: Callable[[Array], Array]) -> Replaces:
    """Computes each weight as a function of its logit, and 0 where masked."""

    def altered(original: Callable, logits: Array, mask: Any = None) -> Array:
        weights = function(arithmetic.upcast_half(logits))
        present = weights if mask is None else np.where(mask, weights, weights.dtype.type(0))
        return present.astype(logits.dtype, copy=False)

    return {SOFTMAX: altered}


def sigmoid(x: Array) -> Array:
    """`1 / (1 + exp(-x))`."""
    number = x.dtype.type
    return number(0.5) * (number(1) + arithmetic.tanh(number(0.5) * x))


def _twice(again: bool) -> Replaces:
    """Applies the softmax twice. again: with the mask the second time."""

    def altered(original: Callable, logits: Array, mask: Any = None) -> Array:
        weights = original(logits, mask)
        return original(weights, mask) if again else original(weights)

    return {SOFTMAX: altered}


def _log(original: Callable, logits: Array, mask: Any = None) -> Array:
    weights = original(logits, mask)
    return np.log(np.where(weights > 0, weights, weights.dtype.type(1)))


def _one_more(original: Callable, logits: Array, mask: Any = None) -> Array:
    """exp(x) / (1 + sum exp(x)): softmax with an extra zero logit (off-by-one softmax)."""
    zero = np.zeros((*logits.shape[:-1], 1), logits.dtype)
    shape = (*logits.shape[:-1], 1)
    more = None if mask is None else np.concatenate([np.broadcast_to(mask, logits.shape), np.ones(shape, bool)], axis=-1)
    return original(np.concatenate([logits, zero], axis=-1), more)[..., :-1]


def _without_maximum(original: Callable, logits: Array, mask: Any = None) -> Array:
    x = arithmetic.upcast_half(logits)
    exponential = arithmetic.exp(x) if mask is None else np.where(mask, arithmetic.exp(x), x.dtype.type(0))
    total = arithmetic.sum(exponential, -1)
    return arithmetic.divide(exponential, np.where(total == 0, x.dtype.type(1), total)).astype(logits.dtype, copy=False)


def _one_maximum(original: Callable, logits: Array, mask: Any = None) -> Array:
    present = np.ones(logits.shape, bool) if mask is None else np.broadcast_to(mask, logits.shape)
    largest = np.max(logits, where=present, initial=-np.inf)
    return _without_maximum(original, logits - largest if np.isfinite(largest) else logits, mask)


def _added(number: float, hidden: bool = False) -> Replaces:
    """Adds this number to the visible logits (or to the hidden ones) instead of masking."""

    def altered(original: Callable, logits: Array, mask: Any = None) -> Array:
        return original(logits if mask is None else logits + logits.dtype.type(number) * (mask != hidden).astype(logits.dtype))

    return {SOFTMAX: altered}


def _in_values(query_bthk: Array, value_bsge: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    if mask_bhts is None or mask_bhts.shape[1:3] != (1, 1):
        return {}
    return {"mask_bhts": None, "value_bsge": value_bsge * mask_bhts.transpose(0, 3, 1, 2).astype(value_bsge.dtype)}


def _of_queries(and_keys: bool) -> Replaces:
    """Makes a key mask hide queries if there are as many queries as keys. and_keys: also keys."""

    def change(query_bthk: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
        if mask_bhts is None or mask_bhts.shape[2] != 1 or mask_bhts.shape[3] != query_bthk.shape[1]:
            return {}
        queries_bht1 = mask_bhts.swapaxes(2, 3)
        return {"mask_bhts": queries_bht1 & mask_bhts if and_keys else queries_bht1}

    return {ATTENTION: on_call(change)}


def _crossing_queries(self_mask_bhts: Any, cross_mask_bhts: Any, **others: Any) -> dict[str, Any]:
    if self_mask_bhts is None or self_mask_bhts.shape[2] != 1:
        return {}
    queries_bht1 = self_mask_bhts.swapaxes(2, 3)
    return {"cross_mask_bhts": queries_bht1 if cross_mask_bhts is None else queries_bht1 & cross_mask_bhts}


def _own_queries(x_btd: Array, self_mask_bhts: Any, **others: Any) -> dict[str, Any]:
    """Makes the target's key mask hide queries, only in the decoder."""
    if self_mask_bhts is None or self_mask_bhts.shape[2] != 1 or self_mask_bhts.shape[3] != x_btd.shape[1]:
        return {}
    return {"self_mask_bhts": self_mask_bhts.swapaxes(2, 3)}


def _own_queries_that_attend(original: Callable, *args: Any, **options: Any) -> Array:
    """`_own_queries` with a finite fill: fully masked queries attend to all keys."""
    with patched({SOFTMAX: uniform_when_empty}):
        result: Array = on_call(_own_queries)(original, *args, **options)
    return result


def _scaled_bias(query_bthk: Array, bias_bhts: Any, **others: Any) -> dict[str, Any]:
    return {} if bias_bhts is None else {"bias_bhts": bias_bhts * bias_bhts.dtype.type(query_bthk.shape[3] ** -0.5)}


def _minus_1e9_twice(query_bthk: Array, key_bsgk: Array, mask_bhts: Any, causal: bool, **others: Any) -> dict[str, Any]:
    """Makes fully masked rows attend to keys hidden once; keys hidden twice are 1e9 lower."""
    if mask_bhts is None or not causal:
        return {}
    future = mask.causal_mask(query_bthk.shape[1], key_bsgk.shape[1])
    shape = np.broadcast_shapes(mask_bhts.shape, future.shape)
    hidden = np.broadcast_to(~mask_bhts, shape).astype(int) + np.broadcast_to(~future, shape)
    return {"mask_bhts": hidden == hidden.min(axis=-1, keepdims=True), "causal": False}


MASK, SCORES, KIND = "mask.window_mask", "config.TransformerConfig.scores", "config.TransformerConfig.layer_kind"
OTHER = {"local": "global", "global": "local"}


def _of_keys(count: Callable[[int], int]) -> Replaces:
    """Changes the number of keys in the window by a function of it."""
    return {MASK: on_arguments(window=count)}


def _in_steps(count: Callable[[int], int]) -> Replaces:
    """Changes the number of keys in the window only if there are keys before the first query."""

    def change(target_length: int, source_length: int, window: int) -> dict[str, Any]:
        return {"window": count(window)} if target_length < source_length else {}

    return {MASK: on_call(change)}


def _top_left(original: Callable, target_length: int, source_length: int, window: int) -> Array:
    longest = max(target_length, source_length)
    return original(longest, longest, window)[:, :, :target_length, :source_length]


def _everywhere(original: Callable, config: Any, layer: Any, causal: bool = False) -> Any:
    local = layer is not None and "local" in config.layer_pattern
    return original(config, layer, causal)._replace(**{"window": config.window} if local else {})


def _across(original: Callable, config: Any, layer: Any, causal: bool = False) -> Any:
    local = layer is None and "local" in config.layer_pattern
    return original(config, layer, causal)._replace(**{"window": config.window} if local else {})


def _other_kind(original: Callable, config: Any, layer: int) -> Any:
    differ = len(set(config.layer_pattern)) > 1
    return original(config.replace(layer_pattern=tuple(map(OTHER.get, config.layer_pattern))) if differ else config, layer)


def _other_window(original: Callable, config: Any, layer: int) -> Any:
    return original(config, layer)._replace(window=_other_kind(original, config, layer).window)


ALTERED: Altered = {
    "ATT23": _elementwise(sigmoid),
    "ATT24": {SOFTMAX: _without_maximum},
    "ATT25": _added(1.0),
    "ATT26": {ATTENTION: on_call(_in_values)},
    "ATT27": _of_queries(False),
    "ATT28": {ATTENTION: on_call(_scaled_bias)},
    "ATT29": {ATTENTION: on_call(_minus_1e9_twice)},
    "WIN1": _of_keys(lambda window: window + 1),
    "WIN2": {MASK: on_result(np.ones_like)},
    "WIN3": {SCORES: _everywhere},
    "WIN4": {KIND: _other_window},
    "WIN5": {MASK: _top_left},
}
VARIANTS: Variants = {
    "ATT23": {
        "the softmax is applied twice, both times with the mask": _twice(True),
        "the softmax is applied twice, the second time without the mask": _twice(False),
        "the attention weights are a log-softmax": {SOFTMAX: _log},
        "the attention weights are the logits, without a softmax": _elementwise(lambda x: x),
        "the attention weights are a ReLU of the logits": _elementwise(lambda x: np.maximum(x, 0)),
        "the softmax has an extra 1 in its denominator": {SOFTMAX: _one_more},
        "the attention weights are exponentials that are not divided by their sum": _elementwise(arithmetic.exp),
    },
    "ATT24": {"the softmax subtracts the largest logit of the whole array instead of each row": {SOFTMAX: _one_maximum}},
    "ATT25": {
        "1 is added to the logits of hidden keys": _added(1.0, hidden=True),
        "100 is subtracted from the logits of hidden keys": _added(-100.0, hidden=True),
    },
    "ATT27": {
        "the padding mask hides both queries and keys": _of_queries(True),
        "the target's padding mask hides queries of the cross-attention": {"layers.decoder_layer": on_call(_crossing_queries)},
        "the target's padding mask hides queries instead of keys": {"layers.decoder_layer": on_call(_own_queries)},
        "the target's padding mask hides queries, and a query that may attend to nothing attends to all": {
            "layers.decoder_layer": _own_queries_that_attend
        },
    },
    "WIN1": {
        "the sliding window holds one key too few": _of_keys(lambda window: max(window - 1, 1)),
        "the sliding window is half as long: w / 2 keys on either side of the query": _of_keys(lambda window: window // 2 + 1),
        "in incremental decoding only, the sliding window holds one key too many": _in_steps(lambda window: window + 1),
        "in incremental decoding only, the sliding window holds one key too few": _in_steps(lambda window: max(window - 1, 1)),
    },
    "WIN3": {"the cross-attention has the sliding window too": {SCORES: _across}},
    "WIN4": {"local and global layers are swapped, windows and RoPE": {KIND: _other_kind}},
}
