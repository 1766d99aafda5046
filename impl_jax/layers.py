"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout
from .feed_forward import FeedForward
from .normalization import LayerNorm

__all__ = ["DecoderLayer", "EncoderLayer"]


class EncoderLayer(nnx.Module):
    """Self-attention, then feed-forward, each as a residual sub-layer.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`.
    """

    def __init__(self, config: TransformerConfig, *, dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs) -> None:
        self.norm_placement = config.norm_placement
        self.self_attention = MultiHeadAttention(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.self_attention_norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
        self.self_attention_dropout = Dropout(config.dropout_rate, rngs=rngs)
        self.feed_forward = FeedForward(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.feed_forward_norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
        self.feed_forward_dropout = Dropout(config.dropout_rate, rngs=rngs)

    def __call__(self, x_btd: jax.Array, mask_bhts: jax.Array | None = None) -> jax.Array:
        x_btd = self._self_attention(x_btd, mask_bhts)
        return self._residual(x_btd, self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout)

    def _self_attention(self, x_btd: jax.Array, mask_bhts: jax.Array | None, causal: bool = False) -> jax.Array:
        def self_attention(x_btd: jax.Array) -> Any:
            return self.self_attention(x_btd, x_btd, mask_bhts, causal=causal)

        return self._residual(x_btd, self_attention, self.self_attention_norm, self.self_attention_dropout)

    def _residual(self, x_btd: jax.Array, sublayer: Callable[[jax.Array], Any], norm: LayerNorm, dropout: Dropout) -> jax.Array:
        if self.norm_placement == "pre":
            return x_btd + dropout(sublayer(norm(x_btd)))
        return norm(x_btd + dropout(sublayer(x_btd)))


class DecoderLayer(EncoderLayer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer."""

    def __init__(self, config: TransformerConfig, *, dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs) -> None:
        super().__init__(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.cross_attention = MultiHeadAttention(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.cross_attention_norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
        self.cross_attention_dropout = Dropout(config.dropout_rate, rngs=rngs)

    def __call__(  # type: ignore[override]
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array,
        self_mask_bhts: jax.Array | None = None,
        cross_mask_bhts: jax.Array | None = None,
    ) -> jax.Array:
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)

        def cross_attention(query_btd: jax.Array) -> Any:
            return self.cross_attention(query_btd, memory_bsd, cross_mask_bhts)

        x_btd = self._self_attention(x_btd, self_mask_bhts, causal=True)
        x_btd = self._residual(x_btd, cross_attention, self.cross_attention_norm, self.cross_attention_dropout)
        return self._residual(x_btd, self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout)
