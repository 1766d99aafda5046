"""Scaled dot-product attention and multi-head attention."""

from typing import Any

import numpy as np

from . import arithmetic, checks, dropout, mask, softmax
from .arrays import Array, Gradients, Mask, Tree

__all__ = [
    "multi_head_attention",
    "multi_head_attention_vjp",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
]

Output = Any  # the output, or with return_weights (output, weights)


def scaled_dot_product_attention(
    query_bthk: Array,
    key_bsgk: Array,
    value_bsge: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`.

    Returns the output `b t h e`; with return_weights also the weights `b h t s` before dropout.

    mask_bhts: boolean, True = may attend (MASK); axes of size 1 are broadcast. causal also hides
    later keys (CAUSAL). bias_bhts: added to the scaled logits (SCALE); -inf hides a key. keep_bhts:
    dropout mask of the weights, True = keep. A query that may attend to nothing returns zeros
    (EMPTY). Key head j serves query heads j h/g .. (j+1) h/g - 1. Half-precision dtypes hold logits
    and softmax in float32 and round the weights before they multiply the values. Raises ValueError
    on shapes that do not fit. Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al.
    2023.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    key_bshk, value_bshe = repeat_kv(key_bsgk, query_bthk), repeat_kv(value_bsge, query_bthk)
    logits_bhts, mask_bhts = _logits(query_bthk, key_bshk, mask_bhts, bias_bhts, causal)
    weights_bhts = softmax.softmax(logits_bhts, mask_bhts).astype(query_bthk.dtype, copy=False)
    dropped_bhts = dropout.dropout(weights_bhts, keep_bhts, dropout_rate)
    output_bthe = arithmetic.einsum("bhts,bshe->bthe", dropped_bhts, value_bshe)
    return (output_bthe, weights_bhts) if return_weights else output_bthe


def scaled_dot_product_attention_vjp(
    query_bthk: Array,
    key_bsgk: Array,
    value_bsge: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
    *,
    cotangent: Array,
) -> Gradients:
    """`dV = D(P)^T g`, `dP = D(g V^T)`, `dS = P (dP - sum_s P dP)`, `dQ = dS K / sqrt(k)`, `dK =
    dS^T Q / sqrt(k)`, with P the weights and D their dropout.

    A query that may attend to nothing passes zero gradient (EMPTY). The key and value heads that
    several query heads share get the sum. Half-precision dtypes hold dS in float32. Source: Dao et
    al. 2022, section 3.1.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    key_bshk, value_bshe = repeat_kv(key_bsgk, query_bthk), repeat_kv(value_bsge, query_bthk)
    logits_bhts, mask_bhts = _logits(query_bthk, key_bshk, mask_bhts, bias_bhts, causal)
    dtype, scale = query_bthk.dtype, logits_bhts.dtype.type(query_bthk.shape[3] ** -0.5)
    weights_bhts = softmax.softmax(logits_bhts, mask_bhts).astype(dtype, copy=False)
    dropped_bhts = dropout.dropout(weights_bhts, keep_bhts, dropout_rate)
    g_bhts = arithmetic.einsum("bthe,bshe->bhts", cotangent, value_bshe)
    g_bhts = dropout.dropout_vjp(weights_bhts, keep_bhts, dropout_rate, cotangent=g_bhts)["x"]
    d_logits_bhts = softmax.softmax_vjp(logits_bhts, mask_bhts, cotangent=g_bhts)["logits"]
    wide_key_bshk, wide_query_bthk = (arithmetic.upcast_half(x) for x in (key_bshk, query_bthk))
    d_query_bthk = arithmetic.einsum("bhts,bshk->bthk", d_logits_bhts, wide_key_bshk) * scale
    d_key_bshk = arithmetic.einsum("bhts,bthk->bshk", d_logits_bhts, wide_query_bthk * scale)
    d_value_bshe = arithmetic.einsum("bhts,bthe->bshe", dropped_bhts, cotangent)
    gradients = {
        "query_bthk": d_query_bthk.astype(dtype, copy=False),
        "key_bsgk": sum_over_groups(d_key_bshk.astype(dtype), key_bsgk),
        "value_bsge": sum_over_groups(d_value_bshe, value_bsge),
    }
    if bias_bhts is not None:
        d_bias_bhts = arithmetic.unbroadcast(d_logits_bhts, bias_bhts.shape)
        gradients["bias_bhts"] = d_bias_bhts.astype(bias_bhts.dtype, copy=False)
    return gradients


def repeat_kv(key_bsgk: Array, query_bthk: Array) -> Array:
    """Keys or values, each head repeated for the query heads that share it."""
    heads, groups = query_bthk.shape[2], key_bsgk.shape[2]
    return np.repeat(key_bsgk, heads // groups, axis=2) if groups != heads else key_bsgk


def _logits(
    query_bthk: Array, key_bshk: Array, mask_bhts: Mask, bias_bhts: Array | None, causal: bool
) -> tuple[Array, Array | None]:
    """`query key^T / sqrt(k) + bias`, and the mask with causality in it."""
    batch, target, heads, head_size = query_bthk.shape
    shape_bhts = (batch, heads, target, key_bshk.shape[1])
    wide_query_bthk = arithmetic.upcast_half(query_bthk)
    scaled_bthk = wide_query_bthk * wide_query_bthk.dtype.type(head_size**-0.5)
    logits_bhts = arithmetic.einsum(
        "bthk,bshk->bhts", scaled_bthk, arithmetic.upcast_half(key_bshk)
    )
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), shape_bhts)
        logits_bhts = logits_bhts + arithmetic.upcast_half(bias_bhts)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), shape_bhts)
    if causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, key_bshk.shape[1]))
    return logits_bhts, mask_bhts


def sum_over_groups(gradient_bshk: Array, key_bsgk: Array) -> Array:
    """The gradient of `repeat_kv`: the sum over the query heads that share a head."""
    batch, source, groups, size = key_bsgk.shape
    grouped = gradient_bshk.reshape(batch, source, groups, gradient_bshk.shape[2] // groups, size)
    return arithmetic.unbroadcast(grouped, (batch, source, groups, 1, size))[:, :, :, 0]


def multi_head_attention(
    parameters: Tree,
    query_btd: Array,
    memory_bsd: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
) -> Output:
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`, `output = sum_i
    head_i W_i^O + b^O`.

    query_btd: x, whose tokens attend; memory_bsd: m, what they attend to, which is x itself in
    self-attention. parameters: query.kernel `d h k`, key.kernel `d g k`, value.kernel `d g e`,
    output.kernel `h e d`; biases `h k`, `g k`, `g e`, `d` where present. Returns the output `b t
    d`; with return_weights the output and the weights `b h t s`. Raises ValueError on shapes that
    do not fit. Source: Vaswani et al. 2017, section 3.2.2.
    """
    width = parameters["query"]["kernel"].shape[0]
    checks.check_features("query", query_btd.shape, width)
    checks.check_features("memory", memory_bsd.shape, width)
    query_bthk = queries(parameters, query_btd)
    key_bsgk, value_bsge = keys_and_values(parameters, memory_bsd)
    return attend(
        parameters,
        query_bthk,
        key_bsgk,
        value_bsge,
        mask_bhts,
        bias_bhts,
        causal,
        return_weights,
        keep_bhts,
        dropout_rate,
    )


def queries(parameters: Tree, query_btd: Array) -> Array:
    """`x W^Q + b^Q`: `b t h k`."""
    return _projection("btd,dhk->bthk", parameters["query"], query_btd)


def keys_and_values(parameters: Tree, memory_bsd: Array) -> tuple[Array, Array]:
    """`m W^K + b^K` and `m W^V + b^V`, which a cache may hold: `b s g k` and `b s g e`."""
    key_bsgk = _projection("bsd,dgk->bsgk", parameters["key"], memory_bsd)
    return key_bsgk, _projection("bsd,dge->bsge", parameters["value"], memory_bsd)


def project(parameters: Tree, x_btd: Array) -> tuple[Array, Array, Array]:
    """The projections of self-attention: query `b t h k`, key `b t g k` and value `b t g e`."""
    return queries(parameters, x_btd), *keys_and_values(parameters, x_btd)


def attend(
    parameters: Tree,
    query_bthk: Array,
    key_bsgk: Array,
    value_bsge: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
) -> Output:
    """`multi_head_attention`, given its queries, keys and values."""
    output_bthe, weights_bhts = scaled_dot_product_attention(
        query_bthk,
        key_bsgk,
        value_bsge,
        mask_bhts,
        bias_bhts,
        causal,
        True,
        keep_bhts,
        dropout_rate,
    )
    output_btd = _projection("bthe,hed->btd", parameters["output"], output_bthe)
    return (output_btd, weights_bhts) if return_weights else output_btd


def multi_head_attention_vjp(
    parameters: Tree,
    query_btd: Array,
    memory_bsd: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the output projection, the attention and the three projections.

    Returns parameters, query_btd, memory_bsd, and bias_bhts if there is a bias. In self-attention
    the gradient of x is the sum of query_btd and memory_bsd.
    """
    query_bthk = queries(parameters, query_btd)
    key_bsgk, value_bsge = keys_and_values(parameters, memory_bsd)
    settings: dict[str, Any] = {
        "causal": causal,
        "keep_bhts": keep_bhts,
        "dropout_rate": dropout_rate,
    }
    output_bthe = scaled_dot_product_attention(
        query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, **settings
    )
    g_bthe, output = arithmetic.affine_vjp(
        "bthe,hed->btd", output_bthe, parameters["output"], cotangent
    )
    inner = scaled_dot_product_attention_vjp(
        query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, **settings, cotangent=g_bthe
    )
    gradient_btd, query = arithmetic.affine_vjp(
        "btd,dhk->bthk", query_btd, parameters["query"], inner["query_bthk"]
    )
    from_key_bsd, key = arithmetic.affine_vjp(
        "bsd,dgk->bsgk", memory_bsd, parameters["key"], inner["key_bsgk"]
    )
    from_value_bsd, value = arithmetic.affine_vjp(
        "bsd,dge->bsge", memory_bsd, parameters["value"], inner["value_bsge"]
    )
    gradients = {
        "parameters": {"query": query, "key": key, "value": value, "output": output},
        "query_btd": gradient_btd,
        "memory_bsd": from_key_bsd + from_value_bsd,
    }
    return gradients | ({"bias_bhts": inner["bias_bhts"]} if bias_bhts is not None else {})


def _projection(subscripts: str, parameters: Tree, x: Array) -> Array:
    """One of the four projections, identified by its subscripts."""
    return arithmetic.affine(subscripts, x, parameters)
