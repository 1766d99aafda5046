"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout
(RESIDUAL).
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout, Keep, part
from .feed_forward import FeedForward
from .normalization import norm
from .rotary import Rotation

__all__ = ["DecoderLayer", "EncoderLayer"]

Sublayer = Callable[[Tensor], Any]


class Layer(nn.Module):
    """The residual sub-layers of either layer.

    Post-norm: `x = norm(x + dropout(sublayer(x)))`; pre-norm: `x = x + dropout(sublayer(norm(x)))`;
    after: `x = x + dropout(norm(sublayer(x)))`; sandwich: `x = x +
    dropout(norm(sublayer(norm(x))))`. keep: dropout masks by site, nested; a site without one draws
    its own in training. rotation: of the self-attention, see there.
    """

    self_attention: MultiHeadAttention
    cross_attention: MultiHeadAttention
    feed_forward: FeedForward

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config

    def add(self, name: str, sublayer: nn.Module) -> None:
        """Adds a sub-layer of that name, with its norms and dropout."""
        setattr(self, name, sublayer)
        setattr(self, f"{name}_norm", norm(self.config))
        if self.config.norm_placement == "sandwich":
            setattr(self, f"{name}_output_norm", norm(self.config))
        setattr(self, f"{name}_dropout", Dropout(self.config.dropout_rate))

    def run(
        self,
        x_btd: Tensor,
        attend: Sublayer,
        attend_to_memory: Sublayer | None = None,
        keep: Keep | None = None,
    ) -> Tensor:
        """Applies the sub-layers in their order. attend, attend_to_memory: the attentions, as
        functions of their query.
        """
        x_btd = self.residual("self_attention", x_btd, attend, keep)
        if attend_to_memory is not None:
            x_btd = self.residual("cross_attention", x_btd, attend_to_memory, keep)
        keep_btf = part(keep, "feed_forward", "hidden_dropout")
        return self.residual(
            "feed_forward", x_btd, lambda y_btd: self.feed_forward(y_btd, keep_btf), keep
        )

    def residual(self, name: str, x_btd: Tensor, sublayer: Sublayer, keep: Keep | None) -> Tensor:
        """Applies one sub-layer with its residual connection, norms and dropout."""
        norm, dropout = getattr(self, f"{name}_norm"), getattr(self, f"{name}_dropout")
        placement = self.config.norm_placement
        pre_norm = placement in ("pre", "sandwich")
        y_btd = sublayer(norm(x_btd) if pre_norm else x_btd)
        if placement in ("sandwich", "after"):
            y_btd = (getattr(self, f"{name}_output_norm") if pre_norm else norm)(y_btd)
        x_btd = x_btd + dropout(y_btd, part(keep, f"{name}_dropout"))
        return norm(x_btd) if placement == "post" else x_btd


class EncoderLayer(Layer):
    """Self-attention, then feed-forward, each as a residual sub-layer.

    layer: its index in the stack, whose kind decides the window and the rotation.
    """

    def __init__(self, config: TransformerConfig, layer: int = 0) -> None:
        super().__init__(config)
        self.add("self_attention", MultiHeadAttention(config, layer))
        self.add("feed_forward", FeedForward(config))

    def forward(
        self,
        x_btd: Tensor,
        mask_bhts: Tensor | None = None,
        keep: Keep | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        def attend(y_btd: Tensor) -> Any:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(
                y_btd, y_btd, mask_bhts, keep_bhts=keep_bhts, rotation=rotation
            )

        return self.run(x_btd, attend, keep=keep)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual
    sub-layer.

    The query of the cross-attention is the self-attention's result; its keys and values are the
    memory, which is not normalised here. In a decoder-only model (encoder_layers=0) there is
    neither cross-attention nor memory. layer: its index in the stack, whose kind decides the window
    and the rotation of the self-attention.
    """

    def __init__(self, config: TransformerConfig, layer: int = 0) -> None:
        super().__init__(config)
        self.add("self_attention", MultiHeadAttention(config, layer))
        if config.cross_attention:
            self.add("cross_attention", MultiHeadAttention(config, layer=None))
        self.add("feed_forward", FeedForward(config))

    def forward(
        self,
        x_btd: Tensor,
        memory_bsd: Tensor | None = None,
        self_mask_bhts: Tensor | None = None,
        cross_mask_bhts: Tensor | None = None,
        keep: Keep | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        config, shape = self.config, None if memory_bsd is None else memory_bsd.shape
        checks.check_memory(config.cross_attention, config.model_width, shape, cross_mask_bhts)
        if memory_bsd is not None:
            checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)

        def attend(y_btd: Tensor) -> Any:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(
                y_btd, y_btd, self_mask_bhts, causal=True, keep_bhts=keep_bhts, rotation=rotation
            )

        def attend_to_memory(y_btd: Tensor) -> Any:
            keep_bhts = part(keep, "cross_attention", "weights_dropout")
            return self.cross_attention(y_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        return self.run(x_btd, attend, attend_to_memory if config.cross_attention else None, keep)
