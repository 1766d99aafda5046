"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Callable

from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout
from .feed_forward import FeedForward
from .normalization import LayerNorm

__all__ = ["DecoderLayer", "EncoderLayer"]


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each as a residual sub-layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm_placement == "pre"
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_norm = LayerNorm(config.model_width, config.epsilon)
        self.self_attention_dropout = Dropout(config.dropout_rate)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.model_width, config.epsilon)
        self.feed_forward_dropout = Dropout(config.dropout_rate)

    def forward(self, x_btd: Tensor, mask_bhts: Tensor | None = None) -> Tensor:
        def self_attention(x_btd: Tensor) -> Tensor:
            return self.self_attention(x_btd, x_btd, mask_bhts)

        x_btd = _residual(x_btd, self_attention, self.self_attention_norm, self.self_attention_dropout, self.pre_norm)
        return _residual(x_btd, self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout, self.pre_norm)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer."""

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
        self, x_btd: Tensor, memory_bsd: Tensor, self_mask_bhts: Tensor | None = None, cross_mask_bhts: Tensor | None = None
    ) -> Tensor:
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)

        def self_attention(x_btd: Tensor) -> Tensor:
            return self.self_attention(x_btd, x_btd, self_mask_bhts, causal=True)

        def cross_attention(query_btd: Tensor) -> Tensor:
            return self.cross_attention(query_btd, memory_bsd, cross_mask_bhts)

        x_btd = _residual(x_btd, self_attention, self.self_attention_norm, self.self_attention_dropout, self.pre_norm)
        x_btd = _residual(x_btd, cross_attention, self.cross_attention_norm, self.cross_attention_dropout, self.pre_norm)
        return _residual(x_btd, self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout, self.pre_norm)


def _residual(x_btd: Tensor, sublayer: Callable[[Tensor], Tensor], norm: LayerNorm, dropout: Dropout, pre_norm: bool) -> Tensor:
    if pre_norm:
        return x_btd + dropout(sublayer(norm(x_btd)))
    return norm(x_btd + dropout(sublayer(x_btd)))
