"""Encoder and decoder layers: attention and feed-forward as sub-layers, each with residual connection, norm and dropout (RESIDUAL)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import attention, checks, dropout, feed_forward, normalization
from .config import TransformerConfig

__all__ = ["decoder_layer", "decoder_layer_vjp", "encoder_layer", "encoder_layer_vjp"]

Tree = Mapping[str, Any]


def encoder_layer(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """Self-attention, then feed-forward, each as a residual sub-layer.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`.
    parameters: self_attention, self_attention_norm, feed_forward, feed_forward_norm. keep: dropout masks by site
    (self_attention_dropout, feed_forward_dropout, self_attention.weights_dropout, feed_forward.hidden_dropout); None evaluates.
    Returns `b t d`. Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020.
    """
    keep = keep or {}
    y_btd = residual_in(parameters, config, "self_attention", x_btd)
    y_btd = _attend(parameters, config, "self_attention", y_btd, y_btd, mask_bhts, False, keep)
    x_btd = residual_out(parameters, config, "self_attention", x_btd, y_btd, keep)

    y_btd = residual_in(parameters, config, "feed_forward", x_btd)
    y_btd = _feed_forward(parameters, config, y_btd, keep)
    return residual_out(parameters, config, "feed_forward", x_btd, y_btd, keep)


def encoder_layer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """The statements of `encoder_layer`, then their vjps in reverse; parameters and x_btd."""
    keep = keep or {}
    in_1_btd = residual_in(parameters, config, "self_attention", x_btd)
    out_1_btd = _attend(
        parameters, config, "self_attention", in_1_btd, in_1_btd, mask_bhts, False, keep
    )
    x_2_btd = residual_out(parameters, config, "self_attention", x_btd, out_1_btd, keep)
    in_2_btd = residual_in(parameters, config, "feed_forward", x_2_btd)
    out_2_btd = _feed_forward(parameters, config, in_2_btd, keep)

    after_2 = residual_out_vjp(
        parameters, config, "feed_forward", x_2_btd, out_2_btd, keep, cotangent=cotangent
    )
    inner_2 = _feed_forward_vjp(parameters, config, in_2_btd, keep, cotangent=after_2["y_btd"])
    before_2 = residual_in_vjp(
        parameters, config, "feed_forward", x_2_btd, cotangent=inner_2["x_btd"]
    )
    g_btd = after_2["x_btd"] + before_2["x_btd"]

    after_1 = residual_out_vjp(
        parameters, config, "self_attention", x_btd, out_1_btd, keep, cotangent=g_btd
    )
    inner_1 = _attend_vjp(
        parameters,
        config,
        "self_attention",
        in_1_btd,
        in_1_btd,
        mask_bhts,
        False,
        keep,
        cotangent=after_1["y_btd"],
    )
    g_btd = inner_1["query_btd"] + inner_1["memory_bsd"]
    before_1 = residual_in_vjp(parameters, config, "self_attention", x_btd, cotangent=g_btd)
    gradients = {
        "self_attention": inner_1["parameters"],
        "self_attention_norm": after_1["norm"] or before_1["norm"],
        "feed_forward": inner_2["parameters"],
        "feed_forward_norm": after_2["norm"] or before_2["norm"],
    }
    return {"parameters": gradients, "x_btd": after_1["x_btd"] + before_1["x_btd"]}


def decoder_layer(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray | None = None,
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer.

    The query of the cross-attention is the result of the self-attention's sub-layer; its keys and values are the memory, never
    normalised here. A decoder alone (encoder_layers=0) has neither cross-attention nor memory. parameters: those of `encoder_layer`,
    cross_attention, cross_attention_norm. keep: those of `encoder_layer`, cross_attention_dropout, cross_attention.weights_dropout.
    Returns `b t d`. Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    checks.check_memory(
        config.cross_attention,
        config.model_width,
        None if memory_bsd is None else memory_bsd.shape,
        cross_mask_bhts,
    )
    if memory_bsd is not None:
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)
    keep = keep or {}
    y_btd = residual_in(parameters, config, "self_attention", x_btd)
    y_btd = _attend(parameters, config, "self_attention", y_btd, y_btd, self_mask_bhts, True, keep)
    x_btd = residual_out(parameters, config, "self_attention", x_btd, y_btd, keep)

    if memory_bsd is not None:
        y_btd = residual_in(parameters, config, "cross_attention", x_btd)
        y_btd = _attend(
            parameters, config, "cross_attention", y_btd, memory_bsd, cross_mask_bhts, False, keep
        )
        x_btd = residual_out(parameters, config, "cross_attention", x_btd, y_btd, keep)

    y_btd = residual_in(parameters, config, "feed_forward", x_btd)
    y_btd = _feed_forward(parameters, config, y_btd, keep)
    return residual_out(parameters, config, "feed_forward", x_btd, y_btd, keep)


def decoder_layer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray | None = None,
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """The statements of `decoder_layer`, then their vjps in reverse; parameters, x_btd, and memory_bsd where there is one."""
    keep = keep or {}
    gradients: dict[str, Any] = {}
    in_1_btd = residual_in(parameters, config, "self_attention", x_btd)
    out_1_btd = _attend(
        parameters, config, "self_attention", in_1_btd, in_1_btd, self_mask_bhts, True, keep
    )
    x_3_btd = x_2_btd = residual_out(parameters, config, "self_attention", x_btd, out_1_btd, keep)
    if memory_bsd is not None:
        in_2_btd = residual_in(parameters, config, "cross_attention", x_2_btd)
        out_2_btd = _attend(
            parameters,
            config,
            "cross_attention",
            in_2_btd,
            memory_bsd,
            cross_mask_bhts,
            False,
            keep,
        )
        x_3_btd = residual_out(parameters, config, "cross_attention", x_2_btd, out_2_btd, keep)
    in_3_btd = residual_in(parameters, config, "feed_forward", x_3_btd)
    out_3_btd = _feed_forward(parameters, config, in_3_btd, keep)

    after = residual_out_vjp(
        parameters, config, "feed_forward", x_3_btd, out_3_btd, keep, cotangent=cotangent
    )
    inner = _feed_forward_vjp(parameters, config, in_3_btd, keep, cotangent=after["y_btd"])
    before = residual_in_vjp(parameters, config, "feed_forward", x_3_btd, cotangent=inner["x_btd"])
    gradients |= {
        "feed_forward": inner["parameters"],
        "feed_forward_norm": after["norm"] or before["norm"],
    }
    g_btd, memory = after["x_btd"] + before["x_btd"], {}

    if memory_bsd is not None:
        after = residual_out_vjp(
            parameters, config, "cross_attention", x_2_btd, out_2_btd, keep, cotangent=g_btd
        )
        inner = _attend_vjp(
            parameters,
            config,
            "cross_attention",
            in_2_btd,
            memory_bsd,
            cross_mask_bhts,
            False,
            keep,
            cotangent=after["y_btd"],
        )
        before = residual_in_vjp(
            parameters, config, "cross_attention", x_2_btd, cotangent=inner["query_btd"]
        )
        gradients |= {
            "cross_attention": inner["parameters"],
            "cross_attention_norm": after["norm"] or before["norm"],
        }
        g_btd, memory = after["x_btd"] + before["x_btd"], {"memory_bsd": inner["memory_bsd"]}

    after = residual_out_vjp(
        parameters, config, "self_attention", x_btd, out_1_btd, keep, cotangent=g_btd
    )
    inner = _attend_vjp(
        parameters,
        config,
        "self_attention",
        in_1_btd,
        in_1_btd,
        self_mask_bhts,
        True,
        keep,
        cotangent=after["y_btd"],
    )
    before = residual_in_vjp(
        parameters,
        config,
        "self_attention",
        x_btd,
        cotangent=inner["query_btd"] + inner["memory_bsd"],
    )
    gradients |= {
        "self_attention": inner["parameters"],
        "self_attention_norm": after["norm"] or before["norm"],
    }
    return {"parameters": gradients, "x_btd": after["x_btd"] + before["x_btd"], **memory}


def residual_in(
    parameters: Tree, config: TransformerConfig, name: str, x_btd: np.ndarray
) -> np.ndarray:
    """What the sub-layer of that name is given: `norm(x)` (pre), or x itself (post)."""
    return (
        normalization.layer_norm(parameters[f"{name}_norm"], x_btd, config.epsilon)
        if config.norm_placement == "pre"
        else x_btd
    )


def residual_in_vjp(
    parameters: Tree,
    config: TransformerConfig,
    name: str,
    x_btd: np.ndarray,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """norm, the gradients of the norm where it stands here (pre), and x_btd."""
    if config.norm_placement != "pre":
        return {"norm": {}, "x_btd": cotangent}
    normed = normalization.layer_norm_vjp(
        parameters[f"{name}_norm"], x_btd, config.epsilon, cotangent=cotangent
    )
    return {"norm": normed["parameters"], "x_btd": normed["x_btd"]}


def residual_out(
    parameters: Tree,
    config: TransformerConfig,
    name: str,
    x_btd: np.ndarray,
    y_btd: np.ndarray,
    keep: Tree,
) -> np.ndarray:
    """What the sub-layer's output y becomes: `x + dropout(y)` (pre), or `norm(x + dropout(y))` (post)."""
    sum_btd = x_btd + dropout.dropout(y_btd, keep.get(f"{name}_dropout"), config.dropout_rate)
    return (
        normalization.layer_norm(parameters[f"{name}_norm"], sum_btd, config.epsilon)
        if config.norm_placement == "post"
        else sum_btd
    )


def residual_out_vjp(
    parameters: Tree,
    config: TransformerConfig,
    name: str,
    x_btd: np.ndarray,
    y_btd: np.ndarray,
    keep: Tree,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """norm, the gradients of the norm where it stands here (post), x_btd and y_btd."""
    keep_btd, norm = keep.get(f"{name}_dropout"), {}
    if config.norm_placement == "post":
        sum_btd = x_btd + dropout.dropout(y_btd, keep_btd, config.dropout_rate)
        normed = normalization.layer_norm_vjp(
            parameters[f"{name}_norm"], sum_btd, config.epsilon, cotangent=cotangent
        )
        norm, cotangent = normed["parameters"], normed["x_btd"]
    dropped = dropout.dropout_vjp(y_btd, keep_btd, config.dropout_rate, cotangent=cotangent)
    return {"norm": norm, "x_btd": cotangent, "y_btd": dropped["x"]}


def _attend(
    parameters: Tree, config: TransformerConfig, name: str, query_btd: np.ndarray, memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None, causal: bool, keep: Tree,
) -> np.ndarray:  # fmt: skip
    """The attention of that name, with its dropout mask."""
    keep_bhts = keep.get(name, {}).get("weights_dropout")
    return attention.multi_head_attention(
        parameters[name], query_btd, memory_bsd, mask_bhts,
        causal=causal, keep_bhts=keep_bhts, dropout_rate=config.attention_dropout_rate,
    )  # fmt: skip


def _attend_vjp(
    parameters: Tree, config: TransformerConfig, name: str, query_btd: np.ndarray, memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None, causal: bool, keep: Tree, *, cotangent: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    keep_bhts = keep.get(name, {}).get("weights_dropout")
    return attention.multi_head_attention_vjp(
        parameters[name], query_btd, memory_bsd, mask_bhts,
        causal=causal, keep_bhts=keep_bhts, dropout_rate=config.attention_dropout_rate, cotangent=cotangent,
    )  # fmt: skip


def _feed_forward(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, keep: Tree
) -> np.ndarray:
    """The feed-forward network, with the dropout mask of its hidden layer."""
    keep_btf = keep.get("feed_forward", {}).get("hidden_dropout")
    return feed_forward.feed_forward(
        parameters["feed_forward"], x_btd, config.activation, keep_btf, config.hidden_dropout_rate
    )


def _feed_forward_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    keep: Tree,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    keep_btf = keep.get("feed_forward", {}).get("hidden_dropout")
    settings = config.activation, keep_btf, config.hidden_dropout_rate
    return feed_forward.feed_forward_vjp(
        parameters["feed_forward"], x_btd, *settings, cotangent=cotangent
    )
