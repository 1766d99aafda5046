"""Defects of the attention weights: what stands for the softmax, and masks at other places than under it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic, mask

from .defect import Defect, on_call
from .fills import uniform_when_empty
from .place import replaced

__all__ = ["DEFECTS"]

Array = np.ndarray
Replaces = Mapping[str, Callable]
SOFTMAX, ATTENTION = "softmax.softmax", "attention.scaled_dot_product_attention"


def _elementwise(function: Callable[[Array], Array]) -> Replaces:
    """Weights that are a function of each logit, 0 where masked."""

    def altered(original: Callable, logits: Array, mask: Any = None) -> Array:
        weights = function(arithmetic.upcast_half(logits))
        present = weights if mask is None else np.where(mask, weights, weights.dtype.type(0))
        return present.astype(logits.dtype, copy=False)

    return {SOFTMAX: altered}


def _sigmoid(x: Array) -> Array:
    number = x.dtype.type
    return number(0.5) * (number(1) + arithmetic.tanh(number(0.5) * x))


def _twice(again: bool) -> Replaces:
    """The softmax of the weights; again: under the mask."""

    def altered(original: Callable, logits: Array, mask: Any = None) -> Array:
        weights = original(logits, mask)
        return original(weights, mask) if again else original(weights)

    return {SOFTMAX: altered}


def _log(original: Callable, logits: Array, mask: Any = None) -> Array:
    weights = original(logits, mask)
    return np.log(np.where(weights > 0, weights, weights.dtype.type(1)))


def _one_more(original: Callable, logits: Array, mask: Any = None) -> Array:
    """exp(x) / (1 + sum exp(x)): an entry of logit 0 more, which weighs nothing in."""
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
    """The logits plus this number where they are present, or where they are hidden, without any other mask."""

    def altered(original: Callable, logits: Array, mask: Any = None) -> Array:
        return original(logits if mask is None else logits + logits.dtype.type(number) * (mask != hidden).astype(logits.dtype))

    return {SOFTMAX: altered}


def _in_values(query_bthk: Array, value_bsge: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    if mask_bhts is None or mask_bhts.shape[1:3] != (1, 1):
        return {}
    return {"mask_bhts": None, "value_bsge": value_bsge * mask_bhts.transpose(0, 3, 1, 2).astype(value_bsge.dtype)}


def _of_queries(and_keys: bool) -> Replaces:
    """A mask of keys that hides queries, where there are as many; and_keys: the keys, too."""

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
    """The target's mask of keys that hides queries, where there are as many, in the decoder alone."""
    if self_mask_bhts is None or self_mask_bhts.shape[2] != 1 or self_mask_bhts.shape[3] != x_btd.shape[1]:
        return {}
    return {"self_mask_bhts": self_mask_bhts.swapaxes(2, 3)}


def _own_queries_that_attend(original: Callable, *args: Any, **options: Any) -> Array:
    """The same with a finite fill: in the decoder a query without a key attends to all."""
    with replaced(SOFTMAX, lambda softmax: functools.partial(uniform_when_empty, softmax)):
        result: Array = on_call(_own_queries)(original, *args, **options)
    return result


def _scaled_bias(query_bthk: Array, bias_bhts: Any, **others: Any) -> dict[str, Any]:
    return {} if bias_bhts is None else {"bias_bhts": bias_bhts * bias_bhts.dtype.type(query_bthk.shape[3] ** -0.5)}


def _minus_1e9_twice(query_bthk: Array, key_bsgk: Array, mask_bhts: Any, causal: bool, **others: Any) -> dict[str, Any]:
    """Where nothing is present the keys that one mask alone hides count, by their logits: those hidden twice lie 1e9 lower."""
    if mask_bhts is None or not causal:
        return {}
    future = mask.causal_mask(query_bthk.shape[1], key_bsgk.shape[1])
    shape = np.broadcast_shapes(mask_bhts.shape, future.shape)
    hidden = np.broadcast_to(~mask_bhts, shape).astype(int) + np.broadcast_to(~future, shape)
    return {"mask_bhts": hidden == hidden.min(axis=-1, keepdims=True), "causal": False}


_SOFTMAX: dict[str, Any] = {
    "torch": "weights = torch.softmax(logits, dim=-1)  # once",
    "tf": "weights = tf.nn.softmax(logits, axis=-1)  # once",
    "jax": "weights = jax.nn.softmax(logits, axis=-1)  # once",
}
_MASK: dict[str, Any] = {
    "torch": 'logits = logits.masked_fill(~mask[:, None, None, :], float("-inf"))  # b 1 1 s: of keys, before the softmax',
    "tf": "logits = tf.where(mask[:, None, None, :], logits, logits.dtype.min)  # b 1 1 s: of keys, before the softmax",
    "jax": "weights = jax.nn.softmax(logits, where=mask[:, None, None, :])  # b 1 1 s: of keys",
}
DEFECTS = (
    Defect(
        id="ATT23",
        title="the weights are sigmoids of the logits",
        what="Another function stands for the softmax, or the softmax is applied to its own result.",
        shows="The weights of a query do not sum to 1, or are nearly equal. Any logits show it.",
        variants={
            "the softmax of the weights is taken once more, with the mask": _twice(True),
            "the softmax of the weights is taken once more, without the mask": _twice(False),
            "the weights are logarithms: log-softmax": {SOFTMAX: _log},
            "the weights are the logits themselves": _elementwise(lambda x: x),
            "the weights are the logits above 0": _elementwise(lambda x: np.maximum(x, 0)),
            "the softmax has a 1 in its denominator": {SOFTMAX: _one_more},
            "the weights are exponentials of the logits, not divided by their sum": _elementwise(arithmetic.exp),
        },
        **_SOFTMAX,
        evidence="derived, not reported",
        replaces=_elementwise(_sigmoid),
    ),
    Defect(
        id="ATT24",
        title="the softmax does not subtract the largest logit",
        what="`exp(x) / sum exp(x)`: beyond 88 in float32, or 709 in float64, the exponential is infinite, and infinity / infinity is NaN.",
        shows="Ordinary logits agree; large ones give NaN, or, where all are far below 0, zeros. Large logits show it.",
        torch="weights = torch.softmax(logits, dim=-1)  # not logits.exp() / logits.exp().sum(-1, keepdim=True)",
        tf="weights = tf.nn.softmax(logits)  # not tf.exp(logits) / tf.reduce_sum(tf.exp(logits), -1, keepdims=True)",
        jax="weights = jax.nn.softmax(logits)  # not jnp.exp(logits) / jnp.exp(logits).sum(-1, keepdims=True)",
        evidence="derived, not reported",
        variants={"the softmax subtracts the largest logit of the whole array, not of each row": {SOFTMAX: _one_maximum}},
        replaces={SOFTMAX: _without_maximum},
        dtypes=("float64", "float32"),
    ),
    Defect(
        id="ATT25",
        title="the mask's 1 is added to the logits",
        what="`softmax(x + mask)` with a mask of 1 (may attend) and 0, where one of 0 and -inf is expected; or `x - (1 - mask)`.",
        shows="Padding is attended to, if a little less. Any mask shows it.",
        variants={
            "a 1 is added to the logits of hidden keys": _added(1.0, hidden=True),
            "100 is subtracted from the logits of hidden keys": _added(-100.0, hidden=True),
        },
        torch="F.scaled_dot_product_attention(query, key, value, attn_mask=mask.bool())  # a floating mask is added",
        tf="logits = logits + (1.0 - mask) * -1e9",
        jax="jax.nn.dot_product_attention(query, key, value, mask=mask.astype(bool))  # bias is added",
        evidence="pytorch#136816",
        replaces=_added(1.0),
    ),
    Defect(
        id="ATT26",
        title="the padding mask is applied to the values alone",
        what="`softmax(x) (mask value)`: padding adds nothing to the output, and counts in the denominator.",
        shows="The outputs are too small, the more padding there is. Any padding shows it.",
        **_MASK,
        evidence="pytorch-image-models#2236",
        replaces={ATTENTION: on_call(_in_values)},
    ),
    Defect(
        id="ATT27",
        title="the padding mask hides queries instead of keys",
        what="`b 1 t 1` stands where `b 1 1 s` is expected: a padded query sees nothing, and every other one sees the padding.",
        shows="Padding is attended to. Any padding shows it where the lengths are equal.",
        variants={
            "the padding mask hides queries and keys": _of_queries(True),
            "the target's padding hides queries of the cross-attention": {"layers.decoder_layer": on_call(_crossing_queries)},
            "the target's padding hides queries instead of keys": {"layers.decoder_layer": on_call(_own_queries)},
            "the target's padding hides queries instead of keys, and a query without a key attends to all": {
                "layers.decoder_layer": _own_queries_that_attend
            },
        },
        **_MASK,
        evidence="hyunwoongko/transformer#40, keras-io#1046",
        replaces=_of_queries(False),
    ),
    Defect(
        id="ATT28",
        title="the bias is scaled with the logits",
        what="`(q k^T + bias) / sqrt(k)` instead of `q k^T / sqrt(k) + bias`.",
        shows="Nothing without a bias; positions that enter as one weigh too little. A bias that is not zero shows it.",
        torch="logits = query @ key.transpose(-2, -1) * scale + bias",
        tf="logits = tf.matmul(query, key, transpose_b=True) * scale + bias",
        jax='logits = jnp.einsum("bthk,bshk->bhts", query, key) * scale + bias',
        evidence="derived, not reported",
        replaces={ATTENTION: on_call(_scaled_bias)},
    ),
    Defect(
        id="ATT29",
        title="-1e9 is added twice: where both masks hide, and once",
        what="`x - 1e9 (padding) - 1e9 (future)`: a row without a key attends to what one mask alone hides, by its logits.",
        shows="Only rows that may attend to nothing differ. Left padding together with a causal mask shows it.",
        torch="logits = logits.masked_fill(~(padding & causal), torch.finfo(logits.dtype).min)  # combine, then fill once",
        tf="logits = tf.where(padding & causal, logits, logits.dtype.min)  # combine, then fill once",
        jax="mask = nn.combine_masks(padding, causal, dtype=bool)  # combine, then fill once",
        evidence="transformers#27114",
        replaces={ATTENTION: on_call(_minus_1e9_twice)},
    ),
)
