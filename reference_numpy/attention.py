"""Scaled dot-product attention and multi-head attention."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import arithmetic, checks, dropout, mask, softmax

__all__ = ["multi_head_attention", "scaled_dot_product_attention"]

Output = Any  # the output, or with return_weights (output, weights)


def scaled_dot_product_attention(
    query_bthk: np.ndarray,
    key_bsgk: np.ndarray,
    value_bsge: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    bias_bhts: np.ndarray | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: np.ndarray | None = None,
    dropout_rate: float = 0.0,
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`.

    Returns the output `b t h e`; with return_weights `(output, weights b h t s)`.

    mask_bhts: boolean, True = may attend; causal also hides later keys (CAUSAL). bias_bhts: added to the logits; -inf hides a key.
    A query that may attend to nothing returns zeros (EMPTY). Key head j serves query heads j h/g .. (j+1) h/g - 1. Half types hold
    logits and softmax in float32 and round the weights before they meet the values. keep_bhts: dropout mask of the weights; the weights
    returned are those before dropout.

    Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, head_size = query_bthk.shape
    scores = (batch, heads, target, key_bsgk.shape[1])
    key_bshk, value_bshe = (np.repeat(x, heads // x.shape[2], axis=2) if x.shape[2] != heads else x for x in (key_bsgk, value_bsge))
    wide_query_bthk = arithmetic.widen(query_bthk)
    scaled_bthk = wide_query_bthk * wide_query_bthk.dtype.type(head_size**-0.5)
    logits_bhts = arithmetic.einsum("bthk,bshk->bhts", scaled_bthk, arithmetic.widen(key_bshk))
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), scores)
        logits_bhts = logits_bhts + arithmetic.widen(bias_bhts)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), scores)
    if causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, key_bsgk.shape[1]))
    weights_bhts = softmax.softmax(logits_bhts, mask_bhts).astype(query_bthk.dtype, copy=False)
    dropped_bhts = dropout.dropout(weights_bhts, keep_bhts, dropout_rate)
    output_bthe = arithmetic.einsum("bhts,bshe->bthe", dropped_bhts, value_bshe)
    return (output_bthe, weights_bhts) if return_weights else output_bthe


def multi_head_attention(
    parameters: Mapping[str, Mapping[str, np.ndarray]],
    query_btd: np.ndarray,
    memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    bias_bhts: np.ndarray | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: np.ndarray | None = None,
    dropout_rate: float = 0.0,
) -> Output:
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`, `output = sum_i head_i W_i^O + b^O`.

    query_btd: x; memory_bsd: m, which is x itself in self-attention. parameters: query.kernel `d h k`, key.kernel `d g k`,
    value.kernel `d g e`, output.kernel `h e d`; biases `h k`, `g k`, `g e`, `d` where present.
    Returns the output `b t d`; with return_weights `(output, weights b h t s)`. Raises ValueError on shapes that do not fit.
    Source: Vaswani et al. 2017, section 3.2.2.
    """
    width = parameters["query"]["kernel"].shape[0]
    checks.check_features("query", query_btd.shape, width)
    checks.check_features("memory", memory_bsd.shape, width)
    query_bthk = _project("btd,dhk->bthk", parameters["query"], query_btd)
    key_bsgk = _project("bsd,dgk->bsgk", parameters["key"], memory_bsd)
    value_bsge = _project("bsd,dge->bsge", parameters["value"], memory_bsd)
    output_bthe, weights_bhts = scaled_dot_product_attention(
        query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, True, keep_bhts, dropout_rate
    )
    output_btd = _project("bthe,hed->btd", parameters["output"], output_bthe)
    return (output_btd, weights_bhts) if return_weights else output_btd


def _project(subscripts: str, parameters: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    y = arithmetic.einsum(subscripts, x, parameters["kernel"])
    return y + parameters["bias"] if "bias" in parameters else y
