"""Encoder and decoder layers: residual sub-layers, each with norms and dropout (RESIDUAL)."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout, Keep, part
from .experts import MixtureOfExperts
from .feed_forward import FeedForward
from .normalization import norm
from .rotary import Rotation

__all__ = ["DecoderLayer", "EncoderLayer"]

Sublayer = Callable[[Tensor], Tensor]


class Residual(NamedTuple):
    """The residual connection around a sub-layer.

    post: `norm(x + dropout(sublayer(x)))`; pre: `x + dropout(sublayer(norm(x)))`; after:
    `x + dropout(norm(sublayer(x)))`; sandwich: `x + dropout(output_norm(sublayer(norm(x))))`.
    """

    config: TransformerConfig
    norms: tuple[nn.Module, nn.Module | None]
    dropout: nn.Module

    def __call__(self, x_btd: Tensor, sublayer: Sublayer, keep_btd: Tensor | None) -> Tensor:
        (norm, output_norm), placement = self.norms, self.config.norm_placement
        y_btd = sublayer(norm(x_btd) if placement in ("pre", "sandwich") else x_btd)
        if placement == "after":
            y_btd = norm(y_btd)
        elif output_norm is not None:
            y_btd = output_norm(y_btd)
        x_btd = x_btd + branch(self.config, self.dropout(y_btd, keep_btd))
        return norm(x_btd) if placement == "post" else x_btd


def branch(config: TransformerConfig, y_btd: Tensor) -> Tensor:
    """Multiplies a sub-layer's output, before it is added to x."""
    return y_btd if config.residual_multiplier == 1 else y_btd * config.residual_multiplier


class Layer(nn.Module):
    """The sub-layers common to both kinds of layers.

    layer: index in the stack, which determines window and sink of the self-attention, and whether
    the feed-forward is a mixture of experts. rotation: for queries and keys of the self-attention.
    keep: dropout masks by site, nested; in training, sites without a mask draw their own. routed:
    collects the router's logits, if the layer has experts.
    """

    def __init__(
        self, config: TransformerConfig, layer: int, causal: bool = False, crossing: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        second = config.norm_placement == "sandwich"
        self.self_attention = MultiHeadAttention(config, config.scores(layer, causal))
        self.self_attention_norm = nn.Identity() if config.skips_norm(layer) else norm(config)
        self.self_attention_output_norm = norm(config) if second else None
        self.self_attention_dropout = Dropout(config.dropout_rate)
        if crossing:
            self.cross_attention = MultiHeadAttention(config, config.scores(layer=None))
            self.cross_attention_norm = norm(config)
            self.cross_attention_output_norm = norm(config) if second else None
            self.cross_attention_dropout = Dropout(config.dropout_rate)
        mixed = config.has_experts(layer)
        self.feed_forward = MixtureOfExperts(config) if mixed else FeedForward(config)
        shared = config.norm_placement == "parallel_shared"
        self.feed_forward_norm = None if shared else norm(config)
        self.feed_forward_output_norm = norm(config) if second else None
        self.feed_forward_dropout = Dropout(config.dropout_rate)

    def run(
        self,
        x_btd: Tensor,
        attend: Sublayer,
        attend_to_memory: Sublayer | None = None,
        keep: Keep | None = None,
        routed: list[Tensor] | None = None,
    ) -> Tensor:
        """Runs the residual sub-layers in order. The caller provides the attentions."""

        def feed_forward(y_btd: Tensor) -> Tensor:
            if isinstance(self.feed_forward, MixtureOfExperts):
                return self.feed_forward(y_btd, routed)
            return self.feed_forward(y_btd, part(keep, "feed_forward", "hidden_dropout"))

        if self.config.parallel:
            return self.beside(x_btd, attend, feed_forward, keep)
        norms = self.self_attention_norm, self.self_attention_output_norm
        around = Residual(self.config, norms, self.self_attention_dropout)
        x_btd = around(x_btd, attend, part(keep, "self_attention_dropout"))
        if attend_to_memory is not None:
            norms = self.cross_attention_norm, self.cross_attention_output_norm
            around = Residual(self.config, norms, self.cross_attention_dropout)
            x_btd = around(x_btd, attend_to_memory, part(keep, "cross_attention_dropout"))

        assert self.feed_forward_norm is not None  # parallel_shared alone has none
        norms = self.feed_forward_norm, self.feed_forward_output_norm
        around = Residual(self.config, norms, self.feed_forward_dropout)
        return around(x_btd, feed_forward, part(keep, "feed_forward_dropout"))

    def beside(
        self, x_btd: Tensor, attend: Sublayer, feed_forward: Sublayer, keep: Keep | None
    ) -> Tensor:
        """`x + dropout(attention(norm(x))) + dropout(FFN(norm(x)))`, with two norms or one."""
        y_btd = z_btd = self.self_attention_norm(x_btd)
        if self.feed_forward_norm is not None:
            z_btd = self.feed_forward_norm(x_btd)
        y_btd = self.self_attention_dropout(attend(y_btd), part(keep, "self_attention_dropout"))
        z_btd = self.feed_forward_dropout(feed_forward(z_btd), part(keep, "feed_forward_dropout"))
        return x_btd + branch(self.config, y_btd) + branch(self.config, z_btd)


class EncoderLayer(Layer):
    """Self-attention, then feed-forward, each as a residual sub-layer."""

    def __init__(self, config: TransformerConfig, layer: int = 0) -> None:
        super().__init__(config, layer)

    def forward(
        self,
        x_btd: Tensor,
        mask_bhts: Tensor | None = None,
        rotation: Rotation | None = None,
        keep: Keep | None = None,
    ) -> Tensor:
        def attend(y_btd: Tensor) -> Tensor:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(y_btd, y_btd, mask_bhts, rotation, keep_bhts)

        return self.run(x_btd, attend, keep=keep)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each residual.

    The memory gives keys and values of the cross-attention and is not normalized here. A
    decoder-only model has neither cross-attention nor memory.
    """

    def __init__(self, config: TransformerConfig, layer: int = 0) -> None:
        super().__init__(config, layer, causal=True, crossing=config.cross_attention)

    def forward(
        self,
        x_btd: Tensor,
        memory_bsd: Tensor | None = None,
        self_mask_bhts: Tensor | None = None,
        cross_mask_bhts: Tensor | None = None,
        rotation: Rotation | None = None,
        keep: Keep | None = None,
        routed: list[Tensor] | None = None,
    ) -> Tensor:
        config, shape = self.config, None if memory_bsd is None else memory_bsd.shape
        checks.check_memory(config.cross_attention, config.model_width, shape, cross_mask_bhts)
        if memory_bsd is not None:
            checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)

        def attend(y_btd: Tensor) -> Tensor:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(y_btd, y_btd, self_mask_bhts, rotation, keep_bhts)

        def attend_to_memory(y_btd: Tensor) -> Tensor:
            keep_bhts = part(keep, "cross_attention", "weights_dropout")
            return self.cross_attention(y_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        crossing = attend_to_memory if config.cross_attention else None
        return self.run(x_btd, attend, crossing, keep, routed)
