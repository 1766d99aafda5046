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
Pair = tuple[Tensor, Tensor]  # keys and values
Sublayer = Callable[[Tensor], Tensor]


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each as a residual sub-layer. keep: dropout masks by site, where they are given."""

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
        sites = keep or {}

        def self_attention(x_btd: Tensor) -> Tensor:
            return self.self_attention(x_btd, x_btd, mask_bhts, keep_bhts=sites.get("self_attention", {}).get("weights_dropout"))

        def feed_forward(x_btd: Tensor) -> Tensor:
            return self.feed_forward(x_btd, sites.get("feed_forward", {}).get("hidden_dropout"))

        x_btd = _residual(self, "self_attention", x_btd, self_attention, sites)
        return _residual(self, "feed_forward", x_btd, feed_forward, sites)


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
        self,
        x_btd: Tensor,
        memory_bsd: Tensor,
        self_mask_bhts: Tensor | None = None,
        cross_mask_bhts: Tensor | None = None,
        keep: Tree | None = None,
    ) -> Tensor:
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)
        sites = keep or {}

        def self_attention(x_btd: Tensor) -> Tensor:
            keep_bhts = sites.get("self_attention", {}).get("weights_dropout")
            return self.self_attention(x_btd, x_btd, self_mask_bhts, causal=True, keep_bhts=keep_bhts)

        def cross_attention(query_btd: Tensor) -> Tensor:
            keep_bhts = sites.get("cross_attention", {}).get("weights_dropout")
            return self.cross_attention(query_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        return self._sublayers(x_btd, self_attention, cross_attention, sites)

    def step(
        self, x_btd: Tensor, cache: Mapping[str, Pair], read: int, self_bias_bhts: Tensor | None, cross_bias_bhts: Tensor | None
    ) -> Tensor:
        """`forward` on the next tokens of a target, of which `read` are read: what they add to the cache is written into it, in place.

        x_btd: of every row the tokens of each of its w copies, one copy after the other. cache: self_attention, keys and values `b s w g k`
        of the copies of a whole target; cross_attention, those of the memory, `b s g k`. The biases, 0 or -inf, hide what may not be
        attended to.
        """

        def self_attention(x_btd: Tensor) -> Tensor:
            query_bthk, *new = self.self_attention.project(x_btd)
            key_bsgk, value_bsge = (_written(*pair, read) for pair in zip(cache["self_attention"], new, strict=True))
            output_btd: Any = self.self_attention.attend(query_bthk, key_bsgk, value_bsge, bias_bhts=self_bias_bhts)
            return output_btd

        def cross_attention(query_btd: Tensor) -> Tensor:
            query_bthk = self.cross_attention.queries(query_btd)
            output_btd: Any = self.cross_attention.attend(query_bthk, *cache["cross_attention"], bias_bhts=cross_bias_bhts)
            return output_btd

        return self._sublayers(x_btd, self_attention, cross_attention, {})

    def _sublayers(self, x_btd: Tensor, self_attention: Sublayer, cross_attention: Sublayer, sites: Tree) -> Tensor:
        def feed_forward(x_btd: Tensor) -> Tensor:
            return self.feed_forward(x_btd, sites.get("feed_forward", {}).get("hidden_dropout"))

        x_btd = _residual(self, "self_attention", x_btd, self_attention, sites)
        x_btd = _residual(self, "cross_attention", x_btd, cross_attention, sites)
        return _residual(self, "feed_forward", x_btd, feed_forward, sites)


def _residual(layer: EncoderLayer | DecoderLayer, name: str, x_btd: Tensor, sublayer: Sublayer, sites: Tree) -> Tensor:
    norm, dropout, keep_btd = getattr(layer, f"{name}_norm"), getattr(layer, f"{name}_dropout"), sites.get(f"{name}_dropout")
    if layer.pre_norm:
        return x_btd + dropout(sublayer(norm(x_btd)), keep_btd)
    return norm(x_btd + dropout(sublayer(x_btd), keep_btd))


def _written(kept_bswgk: Tensor, new_btgk: Tensor, read: int) -> Tensor:
    """What is read when the new keys or values have their place after the others: all copies of each token side by side, `b s g k`."""
    new_btwgk = new_btgk.unflatten(1, (kept_bswgk.shape[2], -1)).transpose(1, 2)
    end = read + new_btwgk.shape[1]
    kept_bswgk[:, read:end] = new_btwgk
    return kept_bswgk[:, :end].flatten(1, 2)
