"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout
from .fast import packing as packings
from .fast.packing import Packing
from .feed_forward import FeedForward
from .framework import Configured, register
from .normalization import LayerNorm

__all__ = ["DecoderLayer", "EncoderLayer"]

Keep: TypeAlias = Mapping[str, Any]  # keep masks, nested by site


class _Layer(Configured):
    """The sub-layers that both layers have. Keras hands `training` down to every Dropout inside."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.self_attention = MultiHeadAttention(
            config, dtype=self.dtype_policy, name="self_attention"
        )
        self.self_attention_dropout, self.self_attention_norm = self._dropout_and_norm(
            "self_attention"
        )
        self.feed_forward = FeedForward(config, dtype=self.dtype_policy, name="feed_forward")
        self.feed_forward_dropout, self.feed_forward_norm = self._dropout_and_norm("feed_forward")

    def _dropout_and_norm(self, name: str) -> tuple[Dropout, LayerNorm]:
        dtype, config = self.dtype_policy, self.config
        dropout = Dropout(config.dropout_rate, dtype=dtype, name=f"{name}_dropout")
        return dropout, LayerNorm(
            config.model_width, config.epsilon, dtype=dtype, name=f"{name}_norm"
        )

    def residual_in(self, name: str, x_btd: tf.Tensor) -> tf.Tensor:
        """What the sub-layer of that name is given: `norm(x)` (pre), or x itself (post)."""
        return (
            getattr(self, f"{name}_norm")(x_btd) if self.config.norm_placement == "pre" else x_btd
        )

    def residual_out(self, name: str, x_btd: tf.Tensor, y_btd: tf.Tensor, keep: Keep) -> tf.Tensor:
        """What the sub-layer's output y becomes: `x + dropout(y)` (pre), or `norm(x + dropout(y))` (post)."""
        sum_btd = x_btd + getattr(self, f"{name}_dropout")(y_btd, keep.get(f"{name}_dropout"))
        return (
            getattr(self, f"{name}_norm")(sum_btd)
            if self.config.norm_placement == "post"
            else sum_btd
        )


@register
class EncoderLayer(_Layer):
    """Self-attention, then feed-forward, each as a residual sub-layer.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`. keep: dropout masks by site; the other sites
    draw their own in training. packing: where x is packed, and so are the keep masks but for those of attention's weights.
    """

    def call(
        self,
        x_btd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
        packing: Packing | None = None,
    ) -> tf.Tensor:
        keep = keep or {}

        y_btd = self.residual_in("self_attention", x_btd)
        keep_bhts = keep.get("self_attention", {}).get("weights_dropout")
        y_btd = self.self_attention(
            y_btd, y_btd, mask_bhts, keep_bhts=keep_bhts, packing=packing, memory_packing=packing
        )
        x_btd = self.residual_out("self_attention", x_btd, y_btd, keep)

        y_btd = self.residual_in("feed_forward", x_btd)
        y_btd = self.feed_forward(y_btd, keep.get("feed_forward", {}).get("hidden_dropout"))
        return self.residual_out("feed_forward", x_btd, y_btd, keep)


@register
class DecoderLayer(_Layer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer.

    The query of the cross-attention is the result of the self-attention's sub-layer; its keys and values are the memory, never
    normalised here. A decoder alone (encoder_layers=0) has neither cross-attention nor memory. Otherwise as `EncoderLayer`.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        if config.cross_attention:
            self.cross_attention = MultiHeadAttention(
                config, dtype=self.dtype_policy, name="cross_attention"
            )
            self.cross_attention_dropout, self.cross_attention_norm = self._dropout_and_norm(
                "cross_attention"
            )

    def call(
        self,
        x_btd: tf.Tensor,
        memory_bsd: tf.Tensor | None = None,
        self_mask_bhts: tf.Tensor | None = None,
        cross_mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> tf.Tensor:
        config, keep = self.config, keep or {}
        checks.check_memory(
            config.cross_attention,
            config.model_width,
            None if memory_bsd is None else memory_bsd.shape,
            cross_mask_bhts,
        )
        if memory_bsd is not None:
            checks.check_same_batch(
                x=packings.rows(x_btd, packing), memory=packings.rows(memory_bsd, memory_packing)
            )

        y_btd = self.residual_in("self_attention", x_btd)
        keep_bhts = keep.get("self_attention", {}).get("weights_dropout")
        packed = {"packing": packing, "memory_packing": packing}
        y_btd = self.self_attention(
            y_btd, y_btd, self_mask_bhts, causal=True, keep_bhts=keep_bhts, **packed
        )
        x_btd = self.residual_out("self_attention", x_btd, y_btd, keep)

        if memory_bsd is not None:
            y_btd = self.residual_in("cross_attention", x_btd)
            keep_bhts = keep.get("cross_attention", {}).get("weights_dropout")
            packed = {"packing": packing, "memory_packing": memory_packing}
            y_btd = self.cross_attention(
                y_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts, **packed
            )
            x_btd = self.residual_out("cross_attention", x_btd, y_btd, keep)

        y_btd = self.residual_in("feed_forward", x_btd)
        y_btd = self.feed_forward(y_btd, keep.get("feed_forward", {}).get("hidden_dropout"))
        return self.residual_out("feed_forward", x_btd, y_btd, keep)
