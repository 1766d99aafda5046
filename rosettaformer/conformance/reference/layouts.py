"""Components as other models divide them: what `reference_numpy` computes, with other borders between modules.

A port that has a module of one of these kinds is judged by it; no other port is asked.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, attention, feed_forward, layers, transformer

Tree = Mapping[str, Any]
Pair = tuple[Callable[..., Any], Callable[..., dict[str, Any]]]  # a sub-layer and its vjp


def self_attention(
    parameters: Tree,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    causal: bool = False,
    return_weights: bool = False,
    config: TransformerConfig | None = None,
    position_bt: np.ndarray | None = None,
) -> Any:
    """`multi_head_attention` of x to itself, for modules that take one sequence.

    Its parameters and results are those of `multi_head_attention`; config and positions decide about the first layer, as there.
    """
    own: dict[str, Any] = {"causal": causal, "config": config, "position_bt": position_bt}
    return attention.multi_head_attention(parameters, x_btd, x_btd, mask_bhts, return_weights=return_weights, **own)


def self_attention_vjp(
    parameters: Tree,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    causal: bool = False,
    config: TransformerConfig | None = None,
    position_bt: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """The gradient of x is the sum of its two uses, as query and as memory; parameters, x_btd."""
    own: dict[str, Any] = {"causal": causal, "config": config, "position_bt": position_bt}
    inner = attention.multi_head_attention_vjp(parameters, x_btd, x_btd, mask_bhts, **own, cotangent=cotangent)
    return {"parameters": inner["parameters"], "x_btd": inner["query_btd"] + inner["memory_bsd"]}


def self_attention_sublayer(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    causal: bool = False,
    position_bt: np.ndarray | None = None,
) -> np.ndarray:
    """Self-attention with its residual connection and norms: the first part of a layer.

    post: `norm(x + attention(x, x))`; pre: `x + attention(norm(x), norm(x))`. parameters: self_attention, self_attention_norm.
    """
    sublayer, _ = _self_attention(parameters, config, mask_bhts, causal, position_bt)
    return layers.residual(parameters, config, "self_attention", x_btd, sublayer, None)


def self_attention_sublayer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    causal: bool = False,
    position_bt: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the sub-layer; parameters, x_btd."""
    sublayers = {"self_attention": _self_attention(parameters, config, mask_bhts, causal, position_bt)}
    return layers.run_vjp(parameters, config, x_btd, sublayers, cotangent=cotangent)


def cross_attention_sublayer(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, memory_bsd: np.ndarray, mask_bhts: np.ndarray | None = None
) -> np.ndarray:
    """Attention to the memory with its residual connection and norm: the second part of a decoder layer.

    post: `norm(x + attention(x, memory))`; pre: `x + attention(norm(x), memory)`. parameters: cross_attention, cross_attention_norm.
    """
    sublayer, _ = _cross_attention(parameters, config, memory_bsd, mask_bhts)
    return layers.residual(parameters, config, "cross_attention", x_btd, sublayer, None)


def cross_attention_sublayer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the sub-layer; parameters, x_btd, memory_bsd."""
    sublayers = {"cross_attention": _cross_attention(parameters, config, memory_bsd, mask_bhts)}
    return layers.run_vjp(parameters, config, x_btd, sublayers, cotangent=cotangent)


def feed_forward_sublayer(parameters: Tree, config: TransformerConfig, x_btd: np.ndarray) -> np.ndarray:
    """The feed-forward network with its residual connection and norm: the last part of a layer.

    post: `norm(x + FFN(x))`; pre: `x + FFN(norm(x))`. parameters: feed_forward, feed_forward_norm.
    """
    sublayer, _ = _feed_forward(parameters, config)
    return layers.residual(parameters, config, "feed_forward", x_btd, sublayer, None)


def feed_forward_sublayer_vjp(parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, *, cotangent: np.ndarray) -> dict[str, Any]:
    """Backwards through the sub-layer; parameters, x_btd."""
    sublayers = {"feed_forward": _feed_forward(parameters, config)}
    return layers.run_vjp(parameters, config, x_btd, sublayers, cotangent=cotangent)


def _self_attention(
    parameters: Tree, config: TransformerConfig, mask_bhts: np.ndarray | None, causal: bool, position_bt: np.ndarray | None
) -> Pair:
    own = parameters["self_attention"]
    place: dict[str, Any] = {"config": config, "position_bt": position_bt}
    return (
        lambda y_btd: self_attention(own, y_btd, mask_bhts, causal, **place),
        lambda y_btd, cotangent: self_attention_vjp(own, y_btd, mask_bhts, causal, **place, cotangent=cotangent),
    )


def _cross_attention(parameters: Tree, config: TransformerConfig, memory_bsd: np.ndarray, mask_bhts: np.ndarray | None) -> Pair:
    own = parameters["cross_attention"]
    place: dict[str, Any] = {"config": config, "layer": None}

    def vjp(y_btd: np.ndarray, cotangent: np.ndarray) -> dict[str, Any]:
        inner = attention.multi_head_attention_vjp(own, y_btd, memory_bsd, mask_bhts, **place, cotangent=cotangent)
        return {"x_btd": inner.pop("query_btd"), **inner}

    return lambda y_btd: attention.multi_head_attention(own, y_btd, memory_bsd, mask_bhts, **place), vjp


def _feed_forward(parameters: Tree, config: TransformerConfig) -> Pair:
    own, name = parameters["feed_forward"], config.activation
    return (
        lambda y_btd: feed_forward.feed_forward(own, y_btd, name),
        lambda y_btd, cotangent: feed_forward.feed_forward_vjp(own, y_btd, name, cotangent=cotangent),
    )


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
