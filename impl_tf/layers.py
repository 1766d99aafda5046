"""Encoder and decoder layers: residual sub-layers, each with norms and dropout (RESIDUAL)."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout, Keep, part
from .experts import MixtureOfExperts
from .feed_forward import FeedForward
from .framework import Configured, Routed, register
from .normalization import Norm, norm, output_norm, unchanged
from .precision import upcast_half
from .rotary import Rotation

__all__ = ["DecoderLayer", "EncoderLayer"]

Sublayer: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class Residual(NamedTuple):
    """The residual connection around a sub-layer.

    post: `norm(x + dropout(sublayer(x)))`; pre: `x + dropout(sublayer(norm(x)))`; after:
    `x + dropout(norm(sublayer(x)))`; sandwich: `x + dropout(output_norm(sublayer(norm(x))))`. The
    config's residual_multiplier multiplies what is added to x.
    """

    config: TransformerConfig
    norms: tuple[Sublayer, Norm | None]
    dropout: Dropout

    def __call__(
        self, x_btd: tf.Tensor, sublayer: Sublayer, keep_btd: tf.Tensor | None
    ) -> tf.Tensor:
        (norm, output_norm), placement = self.norms, self.config.norm_placement
        y_btd = sublayer(norm(x_btd) if placement in ("pre", "sandwich") else x_btd)
        if placement == "after":
            y_btd = norm(y_btd)
        elif output_norm is not None:
            y_btd = output_norm(y_btd)
        x_btd = x_btd + branch(self.config, self.dropout(y_btd, keep_btd))
        return norm(x_btd) if placement == "post" else x_btd


def branch(config: TransformerConfig, y_btd: tf.Tensor) -> tf.Tensor:
    """Multiplies a sub-layer's output, before it is added to x."""
    if (multiplier := config.residual_multiplier) == 1:
        return y_btd
    return tf.cast(upcast_half(y_btd) * multiplier, y_btd.dtype)


class _Layer(Configured):
    """The sub-layers common to both kinds of layers. Keras passes `training` to every Dropout.

    layer: index in the stack, which determines the window and sink of the self-attention, and
    whether the feed-forward is a mixture of experts, which has no hidden dropout. routed: collects
    the router's logits, if the layer has experts.
    """

    causal = False

    def __init__(self, config: TransformerConfig, layer: int = 0, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        self.layer, rate, dtype = layer, config.dropout_rate, self.dtype_policy
        scores = config.scores(layer, self.causal)
        self.self_attention = MultiHeadAttention(config, scores, dtype=dtype, name="self_attention")
        self.self_attention_dropout = Dropout(rate, dtype=dtype, name="self_attention_dropout")
        self.self_attention_norm = unchanged
        if not config.skips_norm(layer):
            self.self_attention_norm = norm(config, dtype=dtype, name="self_attention_norm")
        self.self_attention_output_norm = output_norm(
            config, dtype=dtype, name="self_attention_output_norm"
        )
        network = MixtureOfExperts if config.has_experts(layer) else FeedForward
        self.feed_forward = network(config, dtype=dtype, name="feed_forward")
        self.feed_forward_dropout = Dropout(rate, dtype=dtype, name="feed_forward_dropout")
        self.feed_forward_norm = None
        if config.norm_placement != "parallel_shared":
            self.feed_forward_norm = norm(config, dtype=dtype, name="feed_forward_norm")
        self.feed_forward_output_norm = output_norm(
            config, dtype=dtype, name="feed_forward_output_norm"
        )

    def run(
        self,
        x_btd: tf.Tensor,
        attend: Sublayer,
        attend_to_memory: Sublayer | None = None,
        keep: Keep | None = None,
        routed: Routed | None = None,
    ) -> tf.Tensor:
        """Runs the residual sub-layers in order. The caller provides the attentions."""
        config = self.config

        def feed_forward(y_btd: tf.Tensor) -> tf.Tensor:
            if config.has_experts(self.layer):
                return self.feed_forward(y_btd, routed=routed)
            return self.feed_forward(y_btd, part(keep, "feed_forward", "hidden_dropout"))

        if config.parallel:
            return self.beside(x_btd, attend, feed_forward, keep)
        norms = self.self_attention_norm, self.self_attention_output_norm
        around = Residual(config, norms, self.self_attention_dropout)
        x_btd = around(x_btd, attend, part(keep, "self_attention_dropout"))
        if attend_to_memory is not None:
            norms = self.cross_attention_norm, self.cross_attention_output_norm
            around = Residual(config, norms, self.cross_attention_dropout)
            x_btd = around(x_btd, attend_to_memory, part(keep, "cross_attention_dropout"))

        assert self.feed_forward_norm is not None  # parallel_shared alone has none
        norms = self.feed_forward_norm, self.feed_forward_output_norm
        around = Residual(config, norms, self.feed_forward_dropout)
        return around(x_btd, feed_forward, part(keep, "feed_forward_dropout"))

    def beside(
        self, x_btd: tf.Tensor, attend: Sublayer, feed_forward: Sublayer, keep: Keep | None
    ) -> tf.Tensor:
        """`x + dropout(attention(norm(x))) + dropout(FFN(norm(x)))`, with two norms or one."""
        y_btd = z_btd = self.self_attention_norm(x_btd)
        if self.feed_forward_norm is not None:
            z_btd = self.feed_forward_norm(x_btd)
        y_btd = self.self_attention_dropout(attend(y_btd), part(keep, "self_attention_dropout"))
        z_btd = self.feed_forward_dropout(feed_forward(z_btd), part(keep, "feed_forward_dropout"))
        return x_btd + branch(self.config, y_btd) + branch(self.config, z_btd)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "layer": self.layer}


@register
class EncoderLayer(_Layer):
    """Self-attention, then feed-forward, each as a residual sub-layer.

    keep: dropout masks by site; in training, sites without a mask draw their own.
    """

    def call(
        self,
        x_btd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        rotation: Rotation | None = None,
        keep: Keep | None = None,
    ) -> tf.Tensor:
        keep_bhts = part(keep, "self_attention", "weights_dropout")

        def attend(y_btd: tf.Tensor) -> tf.Tensor:
            return self.self_attention(
                y_btd, y_btd, mask_bhts, rotation=rotation, keep_bhts=keep_bhts
            )

        return self.run(x_btd, attend, keep=keep)


@register
class DecoderLayer(_Layer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each residual.

    The memory gives keys and values of the cross-attention and is not normalized here. A
    decoder-only model has neither cross-attention nor memory.
    """

    causal = True

    def __init__(self, config: TransformerConfig, layer: int = 0, **kwargs: object) -> None:
        super().__init__(config, layer, **kwargs)
        if config.cross_attention:
            dtype, rate = self.dtype_policy, config.dropout_rate
            self.cross_attention = MultiHeadAttention(
                config, config.scores(None), dtype=dtype, name="cross_attention"
            )
            self.cross_attention_dropout = Dropout(
                rate, dtype=dtype, name="cross_attention_dropout"
            )
            self.cross_attention_norm = norm(config, dtype=dtype, name="cross_attention_norm")
            self.cross_attention_output_norm = output_norm(
                config, dtype=dtype, name="cross_attention_output_norm"
            )

    def call(
        self,
        x_btd: tf.Tensor,
        memory_bsd: tf.Tensor | None = None,
        self_mask_bhts: tf.Tensor | None = None,
        cross_mask_bhts: tf.Tensor | None = None,
        rotation: Rotation | None = None,
        keep: Keep | None = None,
        routed: Routed | None = None,
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
                y_btd, y_btd, self_mask_bhts, rotation=rotation, keep_bhts=keep_bhts
            )

        def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
            keep_bhts = part(keep, "cross_attention", "weights_dropout")
            return self.cross_attention(y_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        crossing = None if memory_bsd is None else attend_to_memory
        return self.run(x_btd, attend, crossing, keep, routed)
