"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout
from .fast.packing import Packing, rows
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

    def forward(
        self,
        x_btd: Tensor,
        mask_bhts: Tensor | None = None,
        keep: Tree | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        keep = keep or {}
        y_btd = residual_in(self, "self_attention", x_btd)
        keep_bhts = _inner(keep, "self_attention", "weights_dropout")
        y_btd = self.self_attention(
            y_btd, y_btd, mask_bhts, keep_bhts=keep_bhts, packing=packing, memory_packing=packing
        )
        x_btd = residual_out(self, "self_attention", x_btd, y_btd, keep)

        y_btd = residual_in(self, "feed_forward", x_btd)
        y_btd = self.feed_forward(y_btd, _inner(keep, "feed_forward", "hidden_dropout"))
        return residual_out(self, "feed_forward", x_btd, y_btd, keep)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer of `EncoderLayer`'s equation.

    The query of the cross-attention is the self-attention's result; its keys and values are the memory, which is not normalised here.
    A decoder alone (encoder_layers=0) has neither cross-attention nor memory.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre_norm, self.crosses, self.width = (
            config.norm_placement == "pre",
            config.cross_attention,
            config.model_width,
        )
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_norm = LayerNorm(config.model_width, config.epsilon)
        self.self_attention_dropout = Dropout(config.dropout_rate)
        if self.crosses:
            self.cross_attention = MultiHeadAttention(config)
            self.cross_attention_norm = LayerNorm(config.model_width, config.epsilon)
            self.cross_attention_dropout = Dropout(config.dropout_rate)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.model_width, config.epsilon)
        self.feed_forward_dropout = Dropout(config.dropout_rate)

    def forward(
        self,
        x_btd: Tensor,
        memory_bsd: Tensor | None = None,
        self_mask_bhts: Tensor | None = None,
        cross_mask_bhts: Tensor | None = None,
        keep: Tree | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        checks.check_memory(
            self.crosses,
            self.width,
            None if memory_bsd is None else memory_bsd.shape,
            cross_mask_bhts,
        )
        if memory_bsd is not None:
            checks.check_same_batch(x=rows(x_btd, packing), memory=rows(memory_bsd, memory_packing))
        keep = keep or {}
        y_btd = residual_in(self, "self_attention", x_btd)
        keep_bhts = _inner(keep, "self_attention", "weights_dropout")
        y_btd = self.self_attention(
            y_btd,
            y_btd,
            self_mask_bhts,
            causal=True,
            keep_bhts=keep_bhts,
            packing=packing,
            memory_packing=packing,
        )
        x_btd = residual_out(self, "self_attention", x_btd, y_btd, keep)

        if memory_bsd is not None:
            y_btd = residual_in(self, "cross_attention", x_btd)
            keep_bhts = _inner(keep, "cross_attention", "weights_dropout")
            y_btd = self.cross_attention(
                y_btd,
                memory_bsd,
                cross_mask_bhts,
                keep_bhts=keep_bhts,
                packing=packing,
                memory_packing=memory_packing,
            )
            x_btd = residual_out(self, "cross_attention", x_btd, y_btd, keep)

        y_btd = residual_in(self, "feed_forward", x_btd)
        y_btd = self.feed_forward(y_btd, _inner(keep, "feed_forward", "hidden_dropout"))
        return residual_out(self, "feed_forward", x_btd, y_btd, keep)


def residual_in(layer: Any, name: str, x_btd: Tensor) -> Tensor:
    """What the sub-layer of that name is given: pre-norm `norm(x)`, post-norm x."""
    return getattr(layer, f"{name}_norm")(x_btd) if layer.pre_norm else x_btd


def residual_out(layer: Any, name: str, x_btd: Tensor, y_btd: Tensor, keep: Tree) -> Tensor:
    """After the sub-layer of that name gave y: pre-norm `x + dropout(y)`, post-norm `norm(x + dropout(y))`."""
    x_btd = x_btd + getattr(layer, f"{name}_dropout")(y_btd, keep.get(f"{name}_dropout"))
    return x_btd if layer.pre_norm else getattr(layer, f"{name}_norm")(x_btd)


def _inner(keep: Tree, name: str, site: str) -> Tensor | None:
    """The keep mask of a site within a sub-layer."""
    return keep.get(name, {}).get(site)
