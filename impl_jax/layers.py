"""Encoder and decoder layers: sub-layers with residual connections, norm, dropout (RESIDUAL)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout, Keep, part
from .feed_forward import FeedForward
from .normalization import LayerNorm

__all__ = ["DecoderLayer", "EncoderLayer"]


class Layer(nnx.Module):
    """The sub-layers that both layers have, and the residual connection around each.

    keep: dropout masks by site. Without them, `train()` and `eval()` of NNX decide whether random
    ones are drawn.
    """

    cross_attention: MultiHeadAttention  # of a decoder layer that attends to a memory

    def __init__(
        self,
        config: TransformerConfig,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.norm_placement, width = config.norm_placement, config.model_width
        self.self_attention = MultiHeadAttention(
            config, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        self.self_attention_norm = LayerNorm(width, config.epsilon, param_dtype=param_dtype)
        self.self_attention_dropout = Dropout(config.dropout_rate, rngs=rngs)
        self.feed_forward = FeedForward(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.feed_forward_norm = LayerNorm(width, config.epsilon, param_dtype=param_dtype)
        self.feed_forward_dropout = Dropout(config.dropout_rate, rngs=rngs)

    def run(
        self,
        x_btd: jax.Array,
        attend: Callable[[jax.Array], Any],
        attend_to_memory: Callable[[jax.Array], Any] | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        """The residual sub-layers in their order; what each attention reads is the caller's."""
        x_btd = self.residual("self_attention", x_btd, attend, keep)
        if attend_to_memory is not None:
            x_btd = self.residual("cross_attention", x_btd, attend_to_memory, keep)

        def feed_forward(y_btd: jax.Array) -> jax.Array:
            return self.feed_forward(y_btd, part(keep, "feed_forward", "hidden_dropout"))

        return self.residual("feed_forward", x_btd, feed_forward, keep)

    def residual(
        self, name: str, x_btd: jax.Array, sublayer: Callable[[jax.Array], Any], keep: Keep | None
    ) -> jax.Array:
        """pre: `x + dropout(sublayer(norm(x)))`; post: `norm(x + dropout(sublayer(x)))`."""
        norm, dropout = getattr(self, f"{name}_norm"), getattr(self, f"{name}_dropout")
        y_btd = sublayer(norm(x_btd) if self.norm_placement == "pre" else x_btd)
        x_btd = x_btd + dropout(y_btd, part(keep, f"{name}_dropout"))
        return x_btd if self.norm_placement == "pre" else norm(x_btd)


class EncoderLayer(Layer):
    """Self-attention, then feed-forward, each as a residual sub-layer."""

    def __call__(
        self, x_btd: jax.Array, mask_bhts: jax.Array | None = None, keep: Keep | None = None
    ) -> jax.Array:
        def attend(y_btd: jax.Array) -> Any:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(y_btd, y_btd, mask_bhts, keep_bhts=keep_bhts)

        return self.run(x_btd, attend, keep=keep)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each residual.

    Keys and values of the cross-attention are the memory, never normalised here. The layer of a
    decoder-only model (encoder_layers=0) has no cross-attention and takes no memory.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        width, self.width = config.model_width, config.model_width
        if config.cross_attention:
            self.cross_attention = MultiHeadAttention(
                config, dtype=dtype, param_dtype=param_dtype, rngs=rngs
            )
            self.cross_attention_norm = LayerNorm(width, config.epsilon, param_dtype=param_dtype)
            self.cross_attention_dropout = Dropout(config.dropout_rate, rngs=rngs)

    def __call__(
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: jax.Array | None = None,
        cross_mask_bhts: jax.Array | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        memory_shape = None if memory_bsd is None else memory_bsd.shape
        cross_attention = hasattr(self, "cross_attention")
        checks.check_memory(cross_attention, self.width, memory_shape, cross_mask_bhts)

        def attend(y_btd: jax.Array) -> Any:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(
                y_btd, y_btd, self_mask_bhts, causal=True, keep_bhts=keep_bhts
            )

        if memory_bsd is None:
            return self.run(x_btd, attend, keep=keep)
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)

        def attend_to_memory(y_btd: jax.Array) -> Any:
            keep_bhts = part(keep, "cross_attention", "weights_dropout")
            return self.cross_attention(y_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        return self.run(x_btd, attend, attend_to_memory, keep)
