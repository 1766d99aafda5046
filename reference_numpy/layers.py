"""Encoder and decoder layers: attention and feed-forward as sub-layers, each with residual connection, norm and dropout (RESIDUAL)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import attention, checks, dropout, feed_forward, normalization
from .config import TransformerConfig

__all__ = ["decoder_layer", "decoder_layer_vjp", "encoder_layer", "encoder_layer_vjp"]

Tree = Mapping[str, Any]
# attention -> its memory (None: its own input), its mask, whether it is causal
Attentions = Mapping[str, tuple[np.ndarray | None, np.ndarray | None, bool]]


def encoder_layer(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, mask_bhts: np.ndarray | None = None, keep: Tree | None = None
) -> np.ndarray:
    """Self-attention, then feed-forward, each as a residual sub-layer.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`.
    parameters: self_attention, self_attention_norm, feed_forward, feed_forward_norm. keep: dropout masks by site
    (self_attention_dropout, feed_forward_dropout, self_attention.weights_dropout, feed_forward.hidden_dropout); None evaluates.
    Returns `b t d`. Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020.
    """
    return _layer(parameters, config, x_btd, {"self_attention": (None, mask_bhts, False)}, keep or {})[0]


def encoder_layer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through both sub-layers; parameters and x_btd."""
    return _layer_vjp(parameters, config, x_btd, {"self_attention": (None, mask_bhts, False)}, keep or {}, cotangent)


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
    return _layer(parameters, config, x_btd, _of_a_decoder(memory_bsd, self_mask_bhts, cross_mask_bhts), keep or {})[0]


def decoder_layer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray,
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the three sub-layers; parameters, x_btd and memory_bsd."""
    return _layer_vjp(parameters, config, x_btd, _of_a_decoder(memory_bsd, self_mask_bhts, cross_mask_bhts), keep or {}, cotangent)


def _of_a_decoder(memory_bsd: np.ndarray, self_mask_bhts: np.ndarray | None, cross_mask_bhts: np.ndarray | None) -> Attentions:
    return {"self_attention": (None, self_mask_bhts, True), "cross_attention": (memory_bsd, cross_mask_bhts, False)}


def _layer(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, attentions: Attentions, keep: Tree
) -> tuple[np.ndarray, list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]]:
    """The attentions, then the feed-forward, each as a residual sub-layer.

    Returns the layer's output; and of each sub-layer its name, x before it, what it was given and what it gave.
    """
    steps = []
    for name in (*attentions, "feed_forward"):
        in_btd = residual_in(parameters, config, name, x_btd)
        if name == "feed_forward":
            out_btd = feed_forward.feed_forward(parameters[name], in_btd, *_hidden(config, keep))
        else:
            memory_bsd, mask_bhts, causal = attentions[name]
            memory_bsd = in_btd if memory_bsd is None else memory_bsd
            out_btd = _attend(parameters, config, name, in_btd, memory_bsd, mask_bhts, causal, keep)
        steps.append((name, x_btd, in_btd, out_btd))
        x_btd = residual_out(parameters, config, name, x_btd, out_btd, keep)
    return x_btd, steps


def _layer_vjp(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, attentions: Attentions, keep: Tree, g_btd: np.ndarray
) -> dict[str, Any]:
    """`_layer`, then the vjps of its statements in reverse; parameters, x_btd, and memory_bsd where an attention has one."""
    gradients, of_memory = dict[str, Any](), dict[str, np.ndarray]()
    for name, before_btd, in_btd, out_btd in reversed(_layer(parameters, config, x_btd, attentions, keep)[1]):
        after = residual_out_vjp(parameters, config, name, before_btd, out_btd, keep, cotangent=g_btd)
        if name == "feed_forward":
            inner = feed_forward.feed_forward_vjp(parameters[name], in_btd, *_hidden(config, keep), cotangent=after["y_btd"])
            g_btd = inner["x_btd"]
        else:
            memory_bsd, mask_bhts, causal = attentions[name]
            given = (in_btd, in_btd if memory_bsd is None else memory_bsd, mask_bhts)
            settings = _weights(config, name, causal, keep)
            inner = attention.multi_head_attention_vjp(parameters[name], *given, **settings, cotangent=after["y_btd"])
            if memory_bsd is None:
                g_btd = inner["query_btd"] + inner["memory_bsd"]
            else:
                g_btd, of_memory = inner["query_btd"], {"memory_bsd": inner["memory_bsd"]}
        before = residual_in_vjp(parameters, config, name, before_btd, cotangent=g_btd)
        gradients = {name: inner["parameters"], f"{name}_norm": after["norm"] or before["norm"]} | gradients
        g_btd = after["x_btd"] + before["x_btd"]
    return {"parameters": gradients, "x_btd": g_btd} | of_memory


def residual_in(parameters: Tree, config: TransformerConfig, name: str, x_btd: np.ndarray) -> np.ndarray:
    """What the sub-layer of that name is given: `norm(x)` (pre), or x itself (post)."""
    return normalization.layer_norm(parameters[f"{name}_norm"], x_btd, config.epsilon) if config.norm_placement == "pre" else x_btd


def residual_in_vjp(parameters: Tree, config: TransformerConfig, name: str, x_btd: np.ndarray, *, cotangent: np.ndarray) -> dict[str, Any]:
    """norm, the gradients of the norm where it stands here (pre), and x_btd."""
    if config.norm_placement != "pre":
        return {"norm": {}, "x_btd": cotangent}
    normed = normalization.layer_norm_vjp(parameters[f"{name}_norm"], x_btd, config.epsilon, cotangent=cotangent)
    return {"norm": normed["parameters"], "x_btd": normed["x_btd"]}


def residual_out(parameters: Tree, config: TransformerConfig, name: str, x_btd: np.ndarray, y_btd: np.ndarray, keep: Tree) -> np.ndarray:
    """What the sub-layer's output y becomes: `x + dropout(y)` (pre), or `norm(x + dropout(y))` (post)."""
    sum_btd = x_btd + dropout.dropout(y_btd, keep.get(f"{name}_dropout"), config.dropout_rate)
    return normalization.layer_norm(parameters[f"{name}_norm"], sum_btd, config.epsilon) if config.norm_placement == "post" else sum_btd


def residual_out_vjp(
    parameters: Tree, config: TransformerConfig, name: str, x_btd: np.ndarray, y_btd: np.ndarray, keep: Tree, *, cotangent: np.ndarray
) -> dict[str, Any]:
    """norm, the gradients of the norm where it stands here (post), x_btd and y_btd."""
    keep_btd, norm = keep.get(f"{name}_dropout"), {}
    if config.norm_placement == "post":
        sum_btd = x_btd + dropout.dropout(y_btd, keep_btd, config.dropout_rate)
        normed = normalization.layer_norm_vjp(parameters[f"{name}_norm"], sum_btd, config.epsilon, cotangent=cotangent)
        norm, cotangent = normed["parameters"], normed["x_btd"]
    dropped = dropout.dropout_vjp(y_btd, keep_btd, config.dropout_rate, cotangent=cotangent)
    return {"norm": norm, "x_btd": cotangent, "y_btd": dropped["x"]}


def _attend(
    parameters: Tree, config: TransformerConfig, name: str, query_btd: np.ndarray, memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None, causal: bool, keep: Tree,
) -> np.ndarray:  # fmt: skip
    """The attention of that name, with its dropout mask."""
    return attention.multi_head_attention(parameters[name], query_btd, memory_bsd, mask_bhts, **_weights(config, name, causal, keep))


def _weights(config: TransformerConfig, name: str, causal: bool, keep: Tree) -> dict[str, Any]:
    """What that attention does with its weights beside masking them."""
    keep_bhts = keep.get(name, {}).get("weights_dropout")
    return {"causal": causal, "keep_bhts": keep_bhts, "dropout_rate": config.attention_dropout_rate}


def _hidden(config: TransformerConfig, keep: Tree) -> tuple[str, np.ndarray | None, float]:
    """The activation of the feed-forward network's hidden layer, its dropout mask and its dropout rate."""
    return config.activation, keep.get("feed_forward", {}).get("hidden_dropout"), config.hidden_dropout_rate
