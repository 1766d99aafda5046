"""Components as other models divide them: what `reference_numpy` computes, with other borders between modules.

A port that has a module of one of these kinds is judged by it; no other port is asked.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, attention, feed_forward, layers, transformer

__all__ = [
    "cross_attention_sublayer", "cross_attention_sublayer_vjp", "feed_forward_sublayer", "feed_forward_sublayer_vjp", "self_attention",
    "self_attention_sublayer", "self_attention_sublayer_vjp", "self_attention_vjp", "token_decoder", "token_decoder_vjp", "token_encoder",
    "token_encoder_vjp",
]  # fmt: skip

Tree = Mapping[str, Any]


def self_attention(
    parameters: Tree, x_btd: np.ndarray, mask_bhts: np.ndarray | None = None, causal: bool = False, return_weights: bool = False
) -> Any:
    """`multi_head_attention` of x to itself, for modules that take one sequence.

    Its parameters and results are those of `multi_head_attention`.
    """
    return attention.multi_head_attention(parameters, x_btd, x_btd, mask_bhts, causal=causal, return_weights=return_weights)


def self_attention_vjp(
    parameters: Tree, x_btd: np.ndarray, mask_bhts: np.ndarray | None = None, causal: bool = False, *, cotangent: np.ndarray
) -> dict[str, Any]:
    """The gradient of x is the sum of its two uses, as query and as memory; parameters, x_btd."""
    inner = attention.multi_head_attention_vjp(parameters, x_btd, x_btd, mask_bhts, causal=causal, cotangent=cotangent)
    return {"parameters": inner["parameters"], "x_btd": inner["query_btd"] + inner["memory_bsd"]}


def self_attention_sublayer(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, mask_bhts: np.ndarray | None = None, causal: bool = False
) -> np.ndarray:
    """Self-attention with its residual connection and norm: the first part of a layer.

    post: `norm(x + attention(x, x))`; pre: `x + attention(norm(x), norm(x))`. parameters: self_attention, self_attention_norm.
    """
    y_btd = layers.residual_in(parameters, config, "self_attention", x_btd)
    y_btd = attention.multi_head_attention(parameters["self_attention"], y_btd, y_btd, mask_bhts, causal=causal)
    return layers.residual_out(parameters, config, "self_attention", x_btd, y_btd, {})


def self_attention_sublayer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    causal: bool = False,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """The statements of `self_attention_sublayer`, then their vjps in reverse; parameters, x_btd."""
    name = "self_attention"
    in_btd = layers.residual_in(parameters, config, name, x_btd)
    out_btd = attention.multi_head_attention(parameters[name], in_btd, in_btd, mask_bhts, causal=causal)
    after = layers.residual_out_vjp(parameters, config, name, x_btd, out_btd, {}, cotangent=cotangent)
    inner = self_attention_vjp(parameters[name], in_btd, mask_bhts, causal, cotangent=after["y_btd"])
    before = layers.residual_in_vjp(parameters, config, name, x_btd, cotangent=inner["x_btd"])
    gradients = {name: inner["parameters"], f"{name}_norm": after["norm"] or before["norm"]}
    return {"parameters": gradients, "x_btd": after["x_btd"] + before["x_btd"]}


def cross_attention_sublayer(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, memory_bsd: np.ndarray, mask_bhts: np.ndarray | None = None
) -> np.ndarray:
    """Attention to the memory with its residual connection and norm: the second part of a decoder layer.

    post: `norm(x + attention(x, memory))`; pre: `x + attention(norm(x), memory)`. parameters: cross_attention, cross_attention_norm.
    """
    y_btd = layers.residual_in(parameters, config, "cross_attention", x_btd)
    y_btd = attention.multi_head_attention(parameters["cross_attention"], y_btd, memory_bsd, mask_bhts)
    return layers.residual_out(parameters, config, "cross_attention", x_btd, y_btd, {})


def cross_attention_sublayer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """The statements of `cross_attention_sublayer`, then their vjps in reverse; parameters, x_btd, memory_bsd."""
    name = "cross_attention"
    in_btd = layers.residual_in(parameters, config, name, x_btd)
    out_btd = attention.multi_head_attention(parameters[name], in_btd, memory_bsd, mask_bhts)
    after = layers.residual_out_vjp(parameters, config, name, x_btd, out_btd, {}, cotangent=cotangent)
    inner = attention.multi_head_attention_vjp(parameters[name], in_btd, memory_bsd, mask_bhts, cotangent=after["y_btd"])
    before = layers.residual_in_vjp(parameters, config, name, x_btd, cotangent=inner["query_btd"])
    gradients = {name: inner["parameters"], f"{name}_norm": after["norm"] or before["norm"]}
    return {"parameters": gradients, "x_btd": after["x_btd"] + before["x_btd"], "memory_bsd": inner["memory_bsd"]}


def feed_forward_sublayer(parameters: Tree, config: TransformerConfig, x_btd: np.ndarray) -> np.ndarray:
    """The feed-forward network with its residual connection and norm: the last part of a layer.

    post: `norm(x + FFN(x))`; pre: `x + FFN(norm(x))`. parameters: feed_forward, feed_forward_norm.
    """
    y_btd = layers.residual_in(parameters, config, "feed_forward", x_btd)
    y_btd = feed_forward.feed_forward(parameters["feed_forward"], y_btd, config.activation)
    return layers.residual_out(parameters, config, "feed_forward", x_btd, y_btd, {})


def feed_forward_sublayer_vjp(parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, *, cotangent: np.ndarray) -> dict[str, Any]:
    """The statements of `feed_forward_sublayer`, then their vjps in reverse; parameters, x_btd."""
    name = "feed_forward"
    in_btd = layers.residual_in(parameters, config, name, x_btd)
    out_btd = feed_forward.feed_forward(parameters[name], in_btd, config.activation)
    after = layers.residual_out_vjp(parameters, config, name, x_btd, out_btd, {}, cotangent=cotangent)
    inner = feed_forward.feed_forward_vjp(parameters[name], in_btd, config.activation, cotangent=after["y_btd"])
    before = layers.residual_in_vjp(parameters, config, name, x_btd, cotangent=inner["x_btd"])
    gradients = {name: inner["parameters"], f"{name}_norm": after["norm"] or before["norm"]}
    return {"parameters": gradients, "x_btd": after["x_btd"] + before["x_btd"]}


def token_encoder(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:
    """`encode` of a whole model, for encoders that hold their embedding: ids `b s` in, vectors `b s d` out.

    source_mask_bs: boolean, True = real token; without it, every id but the padding id. parameters: source_embedding with what is added
    to it, and encoder.
    """
    return transformer.encode(parameters, config, source, source_mask_bs, segment_bs=segment_bs)


def token_encoder_vjp(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """As `encode_vjp`; parameters, and source where it is soft."""
    return transformer.encode_vjp(parameters, config, source, source_mask_bs, segment_bs=segment_bs, cotangent=cotangent)


def token_decoder(
    parameters: Tree,
    config: TransformerConfig,
    target: np.ndarray,
    memory_bsd: np.ndarray | None = None,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
) -> np.ndarray:
    """`decode` of a whole model, for decoders that hold their embedding and the projection to logits: ids `b t` in, logits `b t v` out.

    memory_bsd: what the encoder gave, whose padding source_mask_bs hides. target_mask_bt: boolean, True = real token; without it, every id
    but the padding id. parameters: target_embedding with what is added to it, decoder, logits.
    """
    own = config.replace(share_embeddings=False)
    return transformer.decode(parameters, own, target, memory_bsd, source_mask_bs, target_mask_bt)


def token_decoder_vjp(
    parameters: Tree,
    config: TransformerConfig,
    target: np.ndarray,
    memory_bsd: np.ndarray | None = None,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """As `decode_vjp`; parameters, memory_bsd where there is one, and target where it is soft."""
    own = config.replace(share_embeddings=False)
    return transformer.decode_vjp(parameters, own, target, memory_bsd, source_mask_bs, target_mask_bt, cotangent=cotangent)
