"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Callable, Mapping
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

Tree = Mapping[str, Any]


class EncoderLayer(nnx.Module):
    """Self-attention, then feed-forward, each as a residual sub-layer.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`.
    keep: dropout masks by site. Without them `train()` and `eval()` of NNX say whether random ones are drawn.
    """

    def __init__(self, config: TransformerConfig, *, dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs) -> None:
        self.norm_placement = config.norm_placement
        self.self_attention = MultiHeadAttention(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.self_attention_norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
        self.self_attention_dropout = Dropout(config.dropout_rate, rngs=rngs)
        self.feed_forward = FeedForward(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.feed_forward_norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
        self.feed_forward_dropout = Dropout(config.dropout_rate, rngs=rngs)

    def __call__(self, x_btd: jax.Array, mask_bhts: jax.Array | None = None, keep: Tree | None = None) -> jax.Array:
        keep = keep or {}
        x_btd = self._self_attention(x_btd, mask_bhts, False, keep)
        return self._feed_forward(x_btd, keep)

    def residual(self, name: str, x_btd: jax.Array, sublayer: Callable[[jax.Array], Any], keep: Tree) -> jax.Array:
        """The sub-layer of that name with its residual connection, norm and dropout; keep: dropout masks by site."""
        norm, dropout, keep_btd = getattr(self, f"{name}_norm"), getattr(self, f"{name}_dropout"), keep.get(f"{name}_dropout")
        if self.norm_placement == "pre":
            return x_btd + dropout(sublayer(norm(x_btd)), keep_btd)
        return norm(x_btd + dropout(sublayer(x_btd), keep_btd))

    def _self_attention(self, x_btd: jax.Array, mask_bhts: jax.Array | None, causal: bool, keep: Tree) -> jax.Array:
        keep_bhts = keep.get("self_attention", {}).get("weights_dropout")

        def self_attention(x_btd: jax.Array) -> Any:
            return self.self_attention(x_btd, x_btd, mask_bhts, causal=causal, keep_bhts=keep_bhts)

        return self.residual("self_attention", x_btd, self_attention, keep)

    def _feed_forward(self, x_btd: jax.Array, keep: Tree) -> jax.Array:
        keep_btf = keep.get("feed_forward", {}).get("hidden_dropout")
        return self.residual("feed_forward", x_btd, lambda x_btd: self.feed_forward(x_btd, keep_btf), keep)


class DecoderLayer(EncoderLayer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer of `EncoderLayer`'s equation.

    The query of the cross-attention is the result of the self-attention's sub-layer; its keys and values are the memory, never normalised
    here.
    """

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
        keep: Tree | None = None,
    ) -> jax.Array:
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)
        keep = keep or {}
        keep_bhts = keep.get("cross_attention", {}).get("weights_dropout")

        def cross_attention(query_btd: jax.Array) -> Any:
            return self.cross_attention(query_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        x_btd = self._self_attention(x_btd, self_mask_bhts, True, keep)
        x_btd = self.residual("cross_attention", x_btd, cross_attention, keep)
        return self._feed_forward(x_btd, keep)
