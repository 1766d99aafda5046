"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout
from .feed_forward import FeedForward
from .normalization import LayerNorm

__all__ = ["DecoderLayer", "EncoderLayer"]

Tree = Mapping[str, Any]


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each as a residual sub-layer; post-norm: `x = norm(x + dropout(sublayer(x)))`, pre-norm:
    `x = x + dropout(sublayer(norm(x)))`.

    keep: dropout masks by site, nested; a site without one draws its own in training.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm_placement == "pre"
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_norm = LayerNorm(config.model_width, config.epsilon)
        self.self_attention_dropout = Dropout(config.dropout_rate)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.model_width, config.epsilon)
        self.feed_forward_dropout = Dropout(config.dropout_rate)

    def forward(self, x_btd: Tensor, mask_bhts: Tensor | None = None, keep: Tree | None = None) -> Tensor:
        keep = keep or {}

        def self_attention(x_btd: Tensor) -> Tensor:
            return self.self_attention(x_btd, x_btd, mask_bhts, keep_bhts=_inner(keep, "self_attention", "weights_dropout"))

        def feed_forward(x_btd: Tensor) -> Tensor:
            return self.feed_forward(x_btd, _inner(keep, "feed_forward", "hidden_dropout"))

        x_btd = residual(self, "self_attention", x_btd, self_attention, keep)
        return residual(self, "feed_forward", x_btd, feed_forward, keep)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer of `EncoderLayer`'s equation.

    The query of the cross-attention is the self-attention's result; its keys and values are the memory, which is not normalised here.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm_placement == "pre"
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_norm = LayerNorm(config.model_width, config.epsilon)
        self.self_attention_dropout = Dropout(config.dropout_rate)
        self.cross_attention = MultiHeadAttention(config)
        self.cross_attention_norm = LayerNorm(config.model_width, config.epsilon)
        self.cross_attention_dropout = Dropout(config.dropout_rate)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.model_width, config.epsilon)
        self.feed_forward_dropout = Dropout(config.dropout_rate)

    def forward(
        self,
        x_btd: Tensor,
        memory_bsd: Tensor,
        self_mask_bhts: Tensor | None = None,
        cross_mask_bhts: Tensor | None = None,
        keep: Tree | None = None,
    ) -> Tensor:
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)
        keep = keep or {}

        def self_attention(x_btd: Tensor) -> Tensor:
            keep_bhts = _inner(keep, "self_attention", "weights_dropout")
            return self.self_attention(x_btd, x_btd, self_mask_bhts, causal=True, keep_bhts=keep_bhts)

        def cross_attention(x_btd: Tensor) -> Tensor:
            keep_bhts = _inner(keep, "cross_attention", "weights_dropout")
            return self.cross_attention(x_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        def feed_forward(x_btd: Tensor) -> Tensor:
            return self.feed_forward(x_btd, _inner(keep, "feed_forward", "hidden_dropout"))

        x_btd = residual(self, "self_attention", x_btd, self_attention, keep)
        x_btd = residual(self, "cross_attention", x_btd, cross_attention, keep)
        return residual(self, "feed_forward", x_btd, feed_forward, keep)


def residual(layer: nn.Module, name: str, x_btd: Tensor, sublayer: Callable[[Tensor], Tensor], keep: Tree) -> Tensor:
    """The sub-layer of that name with its norm, dropout and residual connection (RESIDUAL)."""
    norm, dropout, keep_btd = getattr(layer, f"{name}_norm"), getattr(layer, f"{name}_dropout"), keep.get(f"{name}_dropout")
    if layer.pre_norm:
        return x_btd + dropout(sublayer(norm(x_btd)), keep_btd)
    return norm(x_btd + dropout(sublayer(x_btd), keep_btd))


def _inner(keep: Tree, name: str, site: str) -> Tensor | None:
    """The keep mask of a site within a sub-layer."""
    return keep.get(name, {}).get(site)
