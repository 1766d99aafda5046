"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout
(RESIDUAL)."""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout, Keep, part
from .feed_forward import FeedForward
from .framework import Configured, register
from .normalization import norm
from .rotary import Rotation

__all__ = ["DecoderLayer", "EncoderLayer"]

SubLayer: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class _Layer(Configured):
    """The sub-layers that both layers have. Keras hands `training` down to every Dropout inside.

    layer: its index in the stack, which decides rotation and window of its self-attention.
    rotation: by default that of the positions 0 .. t-1.
    """

    def __init__(self, config: TransformerConfig, layer: int = 0, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.layer, dtype = layer, self.dtype_policy
        self.self_attention = MultiHeadAttention(config, layer, dtype=dtype, name="self_attention")
        self._add_dropout_and_norms("self_attention")
        self.feed_forward = FeedForward(config, dtype=dtype, name="feed_forward")
        self._add_dropout_and_norms("feed_forward")

    def _add_dropout_and_norms(self, sublayer: str) -> None:
        dtype, config = self.dtype_policy, self.config
        dropout = Dropout(config.dropout_rate, dtype=dtype, name=f"{sublayer}_dropout")
        setattr(self, f"{sublayer}_dropout", dropout)
        names = [f"{sublayer}_norm"]
        if config.norm_placement == "sandwich":
            names.append(f"{sublayer}_output_norm")
        for name in names:
            setattr(self, name, norm(config, dtype=dtype, name=name))

    def run(
        self,
        x_btd: tf.Tensor,
        attend: SubLayer,
        attend_to_memory: SubLayer | None = None,
        keep: Keep | None = None,
    ) -> tf.Tensor:
        """The residual sub-layers in their order; what each attention reads is the caller's."""
        x_btd = self.residual("self_attention", x_btd, attend, keep)
        if attend_to_memory is not None:
            x_btd = self.residual("cross_attention", x_btd, attend_to_memory, keep)
        keep_btf = part(keep, "feed_forward", "hidden_dropout")
        return self.residual(
            "feed_forward", x_btd, lambda y_btd: self.feed_forward(y_btd, keep_btf), keep
        )

    def residual(
        self, name: str, x_btd: tf.Tensor, sublayer: SubLayer, keep: Keep | None = None
    ) -> tf.Tensor:
        """pre: `x + dropout(f(norm(x)))`, post: `norm(x + dropout(f(x)))`, after:
        `x + dropout(norm(f(x)))`, sandwich: `x + dropout(norm(f(norm(x))))`, f the sub-layer."""
        norm, dropout = getattr(self, f"{name}_norm"), getattr(self, f"{name}_dropout")
        placement, keep_btd = self.config.norm_placement, part(keep, f"{name}_dropout")
        y_btd = sublayer(norm(x_btd) if placement in ("pre", "sandwich") else x_btd)
        if placement == "after":
            y_btd = norm(y_btd)
        elif placement == "sandwich":
            y_btd = getattr(self, f"{name}_output_norm")(y_btd)
        sum_btd = x_btd + dropout(y_btd, keep_btd)
        return norm(sum_btd) if placement == "post" else sum_btd

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "layer": self.layer}


@register
class EncoderLayer(_Layer):
    """Self-attention, then feed-forward, each as a residual sub-layer.

    keep: dropout masks by site; the other sites draw their own in training.
    """

    def call(
        self,
        x_btd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
        rotation: Rotation | None = None,
    ) -> tf.Tensor:
        keep_bhts = part(keep, "self_attention", "weights_dropout")

        def attend(y_btd: tf.Tensor) -> tf.Tensor:
            return self.self_attention(
                y_btd, y_btd, mask_bhts, keep_bhts=keep_bhts, rotation=rotation
            )

        return self.run(x_btd, attend, keep=keep)


@register
class DecoderLayer(_Layer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual
    sub-layer.

    The query of the cross-attention is the result of the self-attention's sub-layer; its keys and
    values are the memory, never normalised here. A decoder-only model has neither cross-attention
    nor memory.
    """

    def __init__(self, config: TransformerConfig, layer: int = 0, **kwargs: Any) -> None:
        super().__init__(config, layer, **kwargs)
        if config.cross_attention:
            self.cross_attention = MultiHeadAttention(
                config, None, dtype=self.dtype_policy, name="cross_attention"
            )
            self._add_dropout_and_norms("cross_attention")

    def call(
        self,
        x_btd: tf.Tensor,
        memory_bsd: tf.Tensor | None = None,
        self_mask_bhts: tf.Tensor | None = None,
        cross_mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
        rotation: Rotation | None = None,
    ) -> tf.Tensor:
        config, memory_shape = self.config, None if memory_bsd is None else memory_bsd.shape
        checks.check_memory(
            config.cross_attention, config.model_width, memory_shape, cross_mask_bhts
        )
        if memory_bsd is not None:
            checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)

        def attend(y_btd: tf.Tensor) -> tf.Tensor:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(
                y_btd, y_btd, self_mask_bhts, causal=True, keep_bhts=keep_bhts, rotation=rotation
            )

        def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
            keep_bhts = part(keep, "cross_attention", "weights_dropout")
            return self.cross_attention(y_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        return self.run(x_btd, attend, None if memory_bsd is None else attend_to_memory, keep)
