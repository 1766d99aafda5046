"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import attention, checks, dropout, feed_forward, normalization
from .config import TransformerConfig

__all__ = ["decoder_layer", "decoder_layer_vjp", "encoder_layer", "encoder_layer_vjp"]

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
    return _forwards(parameters, config, x_btd, _encoder_sublayers(parameters, config, mask_bhts, keep), keep)


def encoder_layer_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the sub-layers, from the last to the first; parameters and x_btd."""
    keep = keep or {}
    return _backwards(parameters, config, x_btd, _encoder_sublayers(parameters, config, mask_bhts, keep), keep, cotangent)


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
    sublayers = _decoder_sublayers(parameters, config, memory_bsd, self_mask_bhts, cross_mask_bhts, keep)
    return _forwards(parameters, config, x_btd, sublayers, keep)


def decoder_layer_step(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    cache: Mapping[str, Any],
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """`decoder_layer` on the next tokens of a target, in evaluation, and the cache after them.

    cache: self_attention, the keys and values of the tokens before, to which those of x are added; cross_attention, those of the memory.
    """
    grown = dict(cache)

    def self_attention(x_btd: np.ndarray) -> np.ndarray:
        new = attention.keys_and_values(parameters["self_attention"], x_btd)
        key_bsgk, value_bsge = (np.concatenate(pair, axis=1) for pair in zip(cache["self_attention"], new, strict=True))
        grown["self_attention"] = key_bsgk, value_bsge
        return attention.attend(parameters["self_attention"], x_btd, key_bsgk, value_bsge, self_mask_bhts, causal=True)

    def cross_attention(x_btd: np.ndarray) -> np.ndarray:
        key_bsgk, value_bsge = cache["cross_attention"]
        return attention.attend(parameters["cross_attention"], x_btd, key_bsgk, value_bsge, cross_mask_bhts)

    def network(x_btd: np.ndarray) -> np.ndarray:
        return feed_forward.feed_forward(parameters["feed_forward"], x_btd, config.activation)

    for name, sublayer in (("self_attention", self_attention), ("cross_attention", cross_attention), ("feed_forward", network)):
        x_btd = _residual(parameters, config, name, x_btd, sublayer, {})
    return x_btd, grown


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
    """Backwards through the sub-layers, from the last to the first; parameters, x_btd and memory_bsd."""
    keep = keep or {}
    sublayers = _decoder_sublayers(parameters, config, memory_bsd, self_mask_bhts, cross_mask_bhts, keep)
    return _backwards(parameters, config, x_btd, sublayers, keep, cotangent)


class _Sublayer(NamedTuple):
    """What stands inside a residual connection. vjp: from x and a cotangent to the gradients of `parameters`, `x_btd` and other inputs."""

    name: str
    run: Callable[[np.ndarray], np.ndarray]
    vjp: Callable[[np.ndarray, np.ndarray], dict[str, Any]]


def _encoder_sublayers(parameters: Tree, config: TransformerConfig, mask_bhts: np.ndarray | None, keep: Tree) -> list[_Sublayer]:
    return [_self_attention(parameters, config, mask_bhts, False, keep), _feed_forward(parameters, config, keep)]


def _decoder_sublayers(
    parameters: Tree, config: TransformerConfig, memory_bsd: np.ndarray,
    self_mask_bhts: np.ndarray | None, cross_mask_bhts: np.ndarray | None, keep: Tree,
) -> list[_Sublayer]:  # fmt: skip
    return [
        _self_attention(parameters, config, self_mask_bhts, True, keep),
        _cross_attention(parameters, config, memory_bsd, cross_mask_bhts, keep),
        _feed_forward(parameters, config, keep),
    ]


def _self_attention(parameters: Tree, config: TransformerConfig, mask_bhts: np.ndarray | None, causal: bool, keep: Tree) -> _Sublayer:
    def run(x_btd: np.ndarray) -> np.ndarray:
        return _attend(parameters, config, "self_attention", x_btd, x_btd, mask_bhts, causal, keep)

    def vjp(x_btd: np.ndarray, g_btd: np.ndarray) -> dict[str, Any]:
        inner = _attend_vjp(parameters, config, "self_attention", x_btd, x_btd, mask_bhts, causal, keep, g_btd)
        return {"parameters": inner["parameters"], "x_btd": inner["query_btd"] + inner["memory_bsd"]}

    return _Sublayer("self_attention", run, vjp)


def _cross_attention(
    parameters: Tree, config: TransformerConfig, memory_bsd: np.ndarray, mask_bhts: np.ndarray | None, keep: Tree
) -> _Sublayer:
    def run(x_btd: np.ndarray) -> np.ndarray:
        return _attend(parameters, config, "cross_attention", x_btd, memory_bsd, mask_bhts, False, keep)

    def vjp(x_btd: np.ndarray, g_btd: np.ndarray) -> dict[str, Any]:
        inner = _attend_vjp(parameters, config, "cross_attention", x_btd, memory_bsd, mask_bhts, False, keep, g_btd)
        return {"parameters": inner["parameters"], "x_btd": inner["query_btd"], "memory_bsd": inner["memory_bsd"]}

    return _Sublayer("cross_attention", run, vjp)


def _feed_forward(parameters: Tree, config: TransformerConfig, keep: Tree) -> _Sublayer:
    keep_btf = keep.get("feed_forward", {}).get("hidden_dropout")
    settings = (config.activation, keep_btf, config.hidden_dropout_rate)

    def run(x_btd: np.ndarray) -> np.ndarray:
        return feed_forward.feed_forward(parameters["feed_forward"], x_btd, *settings)

    def vjp(x_btd: np.ndarray, g_btd: np.ndarray) -> dict[str, Any]:
        return feed_forward.feed_forward_vjp(parameters["feed_forward"], x_btd, *settings, cotangent=g_btd)

    return _Sublayer("feed_forward", run, vjp)


def _attend(
    parameters: Tree, config: TransformerConfig, name: str, query_btd: np.ndarray, memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None, causal: bool, keep: Tree,
) -> np.ndarray:  # fmt: skip
    keep_bhts = keep.get(name, {}).get("weights_dropout")
    return attention.multi_head_attention(
        parameters[name], query_btd, memory_bsd, mask_bhts,
        causal=causal, keep_bhts=keep_bhts, dropout_rate=config.attention_dropout_rate,
    )  # fmt: skip


def _attend_vjp(
    parameters: Tree, config: TransformerConfig, name: str, query_btd: np.ndarray, memory_bsd: np.ndarray,
    mask_bhts: np.ndarray | None, causal: bool, keep: Tree, cotangent: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    keep_bhts = keep.get(name, {}).get("weights_dropout")
    return attention.multi_head_attention_vjp(
        parameters[name], query_btd, memory_bsd, mask_bhts,
        causal=causal, keep_bhts=keep_bhts, dropout_rate=config.attention_dropout_rate, cotangent=cotangent,
    )  # fmt: skip


def _forwards(parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, sublayers: Sequence[_Sublayer], keep: Tree) -> np.ndarray:
    for sublayer in sublayers:
        x_btd = _residual(parameters, config, sublayer.name, x_btd, sublayer.run, keep)
    return x_btd


def _backwards(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, sublayers: Sequence[_Sublayer], keep: Tree, cotangent: np.ndarray
) -> dict[str, Any]:
    """The input of every sub-layer again, then each sub-layer's gradients from the cotangent that the next one leaves."""
    inputs = [x_btd]
    for sublayer in sublayers[:-1]:
        inputs.append(_residual(parameters, config, sublayer.name, inputs[-1], sublayer.run, keep))
    gradients: dict[str, Any] = {"parameters": {}, "x_btd": cotangent}
    for sublayer, x_btd in zip(reversed(sublayers), reversed(inputs), strict=True):
        inner = _residual_vjp(parameters, config, sublayer, x_btd, keep, gradients["x_btd"])
        gradients = gradients | inner | {"parameters": inner["parameters"] | gradients["parameters"]}
    return gradients


def _residual(
    parameters: Tree, config: TransformerConfig, name: str, x_btd: np.ndarray, sublayer: Callable[[np.ndarray], np.ndarray], keep: Tree
) -> np.ndarray:
    norm, keep_btd = parameters[f"{name}_norm"], keep.get(f"{name}_dropout")
    if config.norm_placement == "pre":
        y_btd = sublayer(normalization.layer_norm(norm, x_btd, config.epsilon))
        return x_btd + dropout.dropout(y_btd, keep_btd, config.dropout_rate)
    y_btd = dropout.dropout(sublayer(x_btd), keep_btd, config.dropout_rate)
    return normalization.layer_norm(norm, x_btd + y_btd, config.epsilon)


def _residual_vjp(
    parameters: Tree, config: TransformerConfig, sublayer: _Sublayer, x_btd: np.ndarray, keep: Tree, cotangent: np.ndarray
) -> dict[str, Any]:
    """The sum of what comes through the sub-layer and what comes past it."""
    norm, keep_btd = parameters[f"{sublayer.name}_norm"], keep.get(f"{sublayer.name}_dropout")
    if config.norm_placement == "pre":
        normed_btd = normalization.layer_norm(norm, x_btd, config.epsilon)
        # Dropout is linear: of the sub-layer's output its gradient needs the shape alone, which is that of x.
        g_btd = dropout.dropout_vjp(x_btd, keep_btd, config.dropout_rate, cotangent=cotangent)["x"]
        inner = sublayer.vjp(normed_btd, g_btd)
        normed = normalization.layer_norm_vjp(norm, x_btd, config.epsilon, cotangent=inner["x_btd"])
        past_btd, through_btd = cotangent, normed["x_btd"]
    else:
        y_btd = sublayer.run(x_btd)
        dropped_btd = dropout.dropout(y_btd, keep_btd, config.dropout_rate)
        normed = normalization.layer_norm_vjp(norm, x_btd + dropped_btd, config.epsilon, cotangent=cotangent)
        past_btd = normed["x_btd"]
        inner = sublayer.vjp(x_btd, dropout.dropout_vjp(y_btd, keep_btd, config.dropout_rate, cotangent=past_btd)["x"])
        through_btd = inner["x_btd"]
    both = {sublayer.name: inner["parameters"], f"{sublayer.name}_norm": normed["parameters"]}
    return inner | {"parameters": both, "x_btd": past_btd + through_btd}
