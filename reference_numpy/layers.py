"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import attention, checks, dropout, feed_forward, normalization
from .config import TransformerConfig

__all__ = ["decoder_layer", "encoder_layer"]

Tree = Mapping[str, Any]


def encoder_layer(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, mask_bhts: np.ndarray | None = None, keep: Tree | None = None
) -> np.ndarray:
    """Self-attention, then feed-forward, each as a residual sub-layer.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`.
    parameters: self_attention, self_attention_norm, feed_forward, feed_forward_norm. keep: dropout masks by site
    (self_attention_dropout, feed_forward_dropout, self_attention.weights_dropout, feed_forward.hidden_dropout); None evaluates.
    Returns `b t d`. Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020.
    """
    keep = keep or {}
    x_btd = _self_attention(parameters, config, x_btd, mask_bhts, False, keep)
    return _feed_forward(parameters, config, x_btd, keep)


def decoder_layer(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray,
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer.

    The query of the cross-attention is the result of the self-attention's sub-layer; its keys and values are the memory, never
    normalised here. parameters: those of `encoder_layer`, cross_attention, cross_attention_norm. keep: those of `encoder_layer`,
    cross_attention_dropout, cross_attention.weights_dropout.
    Returns `b t d`. Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)
    keep = keep or {}
    x_btd = _self_attention(parameters, config, x_btd, self_mask_bhts, True, keep)

    def cross_attention(query_btd: np.ndarray) -> np.ndarray:
        return _attend(parameters, config, "cross_attention", query_btd, memory_bsd, cross_mask_bhts, False, keep)

    x_btd = _residual(parameters, config, "cross_attention", x_btd, cross_attention, keep)
    return _feed_forward(parameters, config, x_btd, keep)


def _self_attention(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, mask_bhts: np.ndarray | None, causal: bool, keep: Tree
) -> np.ndarray:
    def self_attention(x_btd: np.ndarray) -> np.ndarray:
        return _attend(parameters, config, "self_attention", x_btd, x_btd, mask_bhts, causal, keep)

    return _residual(parameters, config, "self_attention", x_btd, self_attention, keep)


def _attend(
    parameters: Tree, config: TransformerConfig, name: str, query_btd: np.ndarray, memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None, causal: bool, keep: Tree,
) -> np.ndarray:  # fmt: skip
    keep_bhts = keep.get(name, {}).get("weights_dropout")
    return attention.multi_head_attention(
        parameters[name], query_btd, memory_bsd, mask_bhts,
        causal=causal, keep_bhts=keep_bhts, dropout_rate=config.attention_dropout_rate,
    )  # fmt: skip


def _feed_forward(parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, keep: Tree) -> np.ndarray:
    def network(x_btd: np.ndarray) -> np.ndarray:
        keep_btf = keep.get("feed_forward", {}).get("hidden_dropout")
        return feed_forward.feed_forward(parameters["feed_forward"], x_btd, config.activation, keep_btf, config.hidden_dropout_rate)

    return _residual(parameters, config, "feed_forward", x_btd, network, keep)


def _residual(
    parameters: Tree, config: TransformerConfig, name: str, x_btd: np.ndarray, sublayer: Callable[[np.ndarray], np.ndarray], keep: Tree
) -> np.ndarray:
    norm, keep_btd = parameters[f"{name}_norm"], keep.get(f"{name}_dropout")
    if config.norm_placement == "pre":
        y_btd = sublayer(normalization.layer_norm(norm, x_btd, config.epsilon))
        return x_btd + dropout.dropout(y_btd, keep_btd, config.dropout_rate)
    y_btd = dropout.dropout(sublayer(x_btd), keep_btd, config.dropout_rate)
    return normalization.layer_norm(norm, x_btd + y_btd, config.epsilon)
