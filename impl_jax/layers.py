"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout, Tree
from .fast.packing import Packing, kept, rows
from .feed_forward import FeedForward
from .normalization import LayerNorm

__all__ = ["DecoderLayer", "EncoderLayer"]


class EncoderLayer(nnx.Module):
    """Self-attention, then feed-forward, each as a residual sub-layer.

    post: `x = norm(x + dropout(sublayer(x)))`; pre: `x = x + dropout(sublayer(norm(x)))`.
    keep: dropout masks by site. Without them `train()` and `eval()` of NNX say whether random ones are drawn.
    packing: of an x that is packed, as the result then is; masks and keep are of rows.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.norm_placement = config.norm_placement
        self.self_attention = MultiHeadAttention(
            config, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        self.self_attention_norm = LayerNorm(
            config.model_width, config.epsilon, param_dtype=param_dtype
        )
        self.self_attention_dropout = Dropout(config.dropout_rate, rngs=rngs)
        self.feed_forward = FeedForward(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.feed_forward_norm = LayerNorm(
            config.model_width, config.epsilon, param_dtype=param_dtype
        )
        self.feed_forward_dropout = Dropout(config.dropout_rate, rngs=rngs)

    def __call__(
        self,
        x_btd: jax.Array,
        mask_bhts: jax.Array | None = None,
        keep: Tree | None = None,
        packing: Packing | None = None,
    ) -> jax.Array:
        keep = kept(keep or {}, packing)
        y_btd = self.residual_in("self_attention", x_btd)
        keep_bhts = keep.get("self_attention", {}).get("weights_dropout")
        y_btd = self.self_attention(
            y_btd, y_btd, mask_bhts, keep_bhts=keep_bhts, packing=packing, memory_packing=packing
        )
        x_btd = self.residual_out("self_attention", x_btd, y_btd, keep)

        y_btd = self.residual_in("feed_forward", x_btd)
        y_btd = self.feed_forward(y_btd, keep.get("feed_forward", {}).get("hidden_dropout"))
        return self.residual_out("feed_forward", x_btd, y_btd, keep)

    def residual_in(self, name: str, x_btd: jax.Array) -> Any:
        """What the sub-layer of that name is given: pre-norm `norm(x)`, post-norm x."""
        return getattr(self, f"{name}_norm")(x_btd) if self.norm_placement == "pre" else x_btd

    def residual_out(self, name: str, x_btd: jax.Array, y_btd: Any, keep: Tree) -> jax.Array:
        """After the sub-layer of that name gave y: pre-norm `x + dropout(y)`, post-norm `norm(x + dropout(y))`."""
        x_btd = x_btd + getattr(self, f"{name}_dropout")(y_btd, keep.get(f"{name}_dropout"))
        return x_btd if self.norm_placement == "pre" else getattr(self, f"{name}_norm")(x_btd)


class DecoderLayer(EncoderLayer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each as a residual sub-layer of `EncoderLayer`'s equation.

    The query of the cross-attention is the result of the self-attention's sub-layer; its keys and values are the memory, never normalised
    here. A decoder alone (encoder_layers=0) has neither cross-attention nor memory.
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
        self.width, self.attends_to_memory = config.model_width, config.cross_attention
        if not config.cross_attention:
            return
        self.cross_attention = MultiHeadAttention(
            config, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        self.cross_attention_norm = LayerNorm(
            config.model_width, config.epsilon, param_dtype=param_dtype
        )
        self.cross_attention_dropout = Dropout(config.dropout_rate, rngs=rngs)

    def __call__(  # type: ignore[override]
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: jax.Array | None = None,
        cross_mask_bhts: jax.Array | None = None,
        keep: Tree | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> jax.Array:
        checks.check_memory(
            self.attends_to_memory,
            self.width,
            None if memory_bsd is None else memory_bsd.shape,
            cross_mask_bhts,
        )
        if memory_bsd is not None:
            checks.check_same_batch(x=rows(x_btd, packing), memory=rows(memory_bsd, memory_packing))
        keep = kept(keep or {}, packing)
        y_btd = self.residual_in("self_attention", x_btd)
        keep_bhts = keep.get("self_attention", {}).get("weights_dropout")
        y_btd = self.self_attention(
            y_btd,
            y_btd,
            self_mask_bhts,
            causal=True,
            keep_bhts=keep_bhts,
            packing=packing,
            memory_packing=packing,
        )
        x_btd = self.residual_out("self_attention", x_btd, y_btd, keep)

        if memory_bsd is not None:
            y_btd = self.residual_in("cross_attention", x_btd)
            keep_bhts = keep.get("cross_attention", {}).get("weights_dropout")
            y_btd = self.cross_attention(
                y_btd,
                memory_bsd,
                cross_mask_bhts,
                keep_bhts=keep_bhts,
                packing=packing,
                memory_packing=memory_packing,
            )
            x_btd = self.residual_out("cross_attention", x_btd, y_btd, keep)

        y_btd = self.residual_in("feed_forward", x_btd)
        y_btd = self.feed_forward(y_btd, keep.get("feed_forward", {}).get("hidden_dropout"))
        return self.residual_out("feed_forward", x_btd, y_btd, keep)
