"""Encoder and decoder layers: residual sub-layers, each with norms and dropout (RESIDUAL)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import jax
from flax import nnx

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout, Keep, part
from .experts import MixtureOfExperts
from .feed_forward import FeedForward
from .normalization import Norm, norm, output_norm, unchanged
from .precision import upcast_half
from .rotary import Rotation
from .values import Mask, Own

__all__ = ["DecoderLayer", "EncoderLayer"]

Sublayer = Callable[[jax.Array], jax.Array]


class Residual(NamedTuple):
    """The residual connection around a sub-layer.

    post: `norm(x + dropout(sublayer(x)))`; pre: `x + dropout(sublayer(norm(x)))`; after:
    `x + dropout(norm(sublayer(x)))`; sandwich: `x + dropout(output_norm(sublayer(norm(x))))`.
    multiplier: multiplies what is added to x.
    """

    placement: str
    multiplier: float
    norms: tuple[Sublayer, Norm | None]
    dropout: Dropout

    def __call__(self, x_btd: jax.Array, sublayer: Sublayer, keep_btd: Mask = None) -> jax.Array:
        norm, output_norm = self.norms
        y_btd = sublayer(norm(x_btd) if self.placement in ("pre", "sandwich") else x_btd)
        if self.placement == "after":
            y_btd = norm(y_btd)
        elif output_norm is not None:
            y_btd = output_norm(y_btd)
        x_btd = x_btd + branch(self.multiplier, self.dropout(y_btd, keep_btd))
        return norm(x_btd) if self.placement == "post" else x_btd


def branch(multiplier: float, y_btd: jax.Array) -> jax.Array:
    """Multiplies a sub-layer's output, before it is added to x."""
    return y_btd if multiplier == 1 else (upcast_half(y_btd) * multiplier).astype(y_btd.dtype)


class Layer(nnx.Module):
    """The sub-layers common to both kinds of layers.

    layer: index in the stack. rotation: for the self-attention. keep: dropout masks by site;
    without them, NNX's `train()` and `eval()` decide whether masks are drawn. routed: collects the
    router's logits, if the layer has experts.
    """

    causal = False  # whether the self-attention is causal
    cross_attention: MultiHeadAttention  # only if a decoder layer attends to a memory
    cross_attention_norm: Norm
    cross_attention_output_norm: Norm | None
    cross_attention_dropout: Dropout

    def __init__(self, config: TransformerConfig, layer: int = 0, **own: Unpack[Own]) -> None:
        self.parallel = config.parallel
        self.residual = config.norm_placement, config.residual_multiplier
        dropout = functools.partial(Dropout, config.dropout_rate, rngs=own["rngs"])
        self.self_attention = MultiHeadAttention(config, config.scores(layer, self.causal), **own)
        skips = config.skips_norm(layer)
        self.self_attention_norm = unchanged if skips else norm(config, **own)
        self.self_attention_output_norm = output_norm(config, **own)
        self.self_attention_dropout = dropout()
        kind = MixtureOfExperts if config.has_experts(layer) else FeedForward
        self.feed_forward = kind(config, **own)
        shared = config.norm_placement == "parallel_shared"
        self.feed_forward_norm = None if shared else norm(config, **own)
        self.feed_forward_output_norm = output_norm(config, **own)
        self.feed_forward_dropout = dropout()

    def run(
        self,
        x_btd: jax.Array,
        attend: Sublayer,
        attend_to_memory: Sublayer | None = None,
        keep: Keep | None = None,
        routed: list[jax.Array] | None = None,
    ) -> jax.Array:
        """Runs the residual sub-layers in order. The caller provides the attentions."""

        def feed_forward(y_btd: jax.Array) -> jax.Array:
            if isinstance(self.feed_forward, MixtureOfExperts):  # without dropout of its own
                return self.feed_forward(y_btd, routed)
            return self.feed_forward(y_btd, part(keep, "feed_forward", "hidden_dropout"))

        if self.parallel:
            return self.beside(x_btd, attend, feed_forward, keep)
        norms = self.self_attention_norm, self.self_attention_output_norm
        around = Residual(*self.residual, norms, self.self_attention_dropout)
        x_btd = around(x_btd, attend, part(keep, "self_attention_dropout"))
        if attend_to_memory is not None:
            norms = self.cross_attention_norm, self.cross_attention_output_norm
            around = Residual(*self.residual, norms, self.cross_attention_dropout)
            x_btd = around(x_btd, attend_to_memory, part(keep, "cross_attention_dropout"))

        assert self.feed_forward_norm is not None  # parallel_shared alone has none
        norms = self.feed_forward_norm, self.feed_forward_output_norm
        around = Residual(*self.residual, norms, self.feed_forward_dropout)
        return around(x_btd, feed_forward, part(keep, "feed_forward_dropout"))

    def beside(
        self, x_btd: jax.Array, attend: Sublayer, feed_forward: Sublayer, keep: Keep | None
    ) -> jax.Array:
        """`x + dropout(attention(norm(x))) + dropout(FFN(norm(x)))`, with two norms or one."""
        y_btd = z_btd = self.self_attention_norm(x_btd)
        if self.feed_forward_norm is not None:
            z_btd = self.feed_forward_norm(x_btd)
        y_btd = self.self_attention_dropout(attend(y_btd), part(keep, "self_attention_dropout"))
        z_btd = self.feed_forward_dropout(feed_forward(z_btd), part(keep, "feed_forward_dropout"))
        _, multiplier = self.residual
        return x_btd + branch(multiplier, y_btd) + branch(multiplier, z_btd)


class EncoderLayer(Layer):
    """Self-attention, then feed-forward, each as a residual sub-layer."""

    def __call__(
        self,
        x_btd: jax.Array,
        mask_bhts: Mask = None,
        rotation: Rotation | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        def attend(y_btd: jax.Array) -> jax.Array:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(y_btd, y_btd, mask_bhts, rotation, keep_bhts)

        return self.run(x_btd, attend, keep=keep)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each residual.

    The memory gives keys and values of the cross-attention and is not normalized here. A
    decoder-only model has neither cross-attention nor memory.
    """

    causal = True

    def __init__(self, config: TransformerConfig, layer: int = 0, **own: Unpack[Own]) -> None:
        super().__init__(config, layer, **own)
        self.width = config.model_width
        if config.cross_attention:
            self.cross_attention = MultiHeadAttention(config, config.scores(None), **own)
            self.cross_attention_norm = norm(config, **own)
            self.cross_attention_output_norm = output_norm(config, **own)
            self.cross_attention_dropout = Dropout(config.dropout_rate, rngs=own["rngs"])

    def __call__(
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: Mask = None,
        cross_mask_bhts: Mask = None,
        rotation: Rotation | None = None,
        keep: Keep | None = None,
        routed: list[jax.Array] | None = None,
    ) -> jax.Array:
        memory_shape = None if memory_bsd is None else memory_bsd.shape
        cross_attention = hasattr(self, "cross_attention")
        checks.check_memory(cross_attention, self.width, memory_shape, cross_mask_bhts)
        if memory_bsd is not None:
            checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)

        def attend(y_btd: jax.Array) -> jax.Array:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(y_btd, y_btd, self_mask_bhts, rotation, keep_bhts)

        def attend_to_memory(y_btd: jax.Array) -> jax.Array:
            keep_bhts = part(keep, "cross_attention", "weights_dropout")
            memory: Any = memory_bsd
            return self.cross_attention(y_btd, memory, cross_mask_bhts, keep_bhts=keep_bhts)

        crossing = None if memory_bsd is None else attend_to_memory
        return self.run(x_btd, attend, crossing, keep, routed)
