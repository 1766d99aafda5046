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
from .normalization import norm
from .rotary import Rotation

__all__ = ["DecoderLayer", "EncoderLayer"]


class Layer(nnx.Module):
    """The sub-layers that both layers have, and the residual connection around each.

    layer: its index in the stack, whose kind decides rotation and window of the self-attention.
    keep: dropout masks by site. Without them, `train()` and `eval()` of NNX decide whether random
    ones are drawn. rotation: see `MultiHeadAttention`.
    """

    cross_attention: MultiHeadAttention  # of a decoder layer that attends to a memory

    def __init__(
        self,
        config: TransformerConfig,
        layer: int = 0,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.norm_placement = config.norm_placement
        self.self_attention = MultiHeadAttention(
            config, layer, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        self._add_residual("self_attention", config, param_dtype=param_dtype, rngs=rngs)
        self.feed_forward = FeedForward(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self._add_residual("feed_forward", config, param_dtype=param_dtype, rngs=rngs)

    def _add_residual(
        self, name: str, config: TransformerConfig, *, param_dtype: Dtype, rngs: nnx.Rngs
    ) -> None:
        """Adds the norms and the dropout of a sub-layer."""
        norms = [f"{name}_norm"] + [f"{name}_output_norm"] * (config.norm_placement == "sandwich")
        for one in norms:
            setattr(self, one, norm(config, param_dtype=param_dtype))
        setattr(self, f"{name}_dropout", Dropout(config.dropout_rate, rngs=rngs))

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
        """post: `norm(x + dropout(sublayer(x)))`; pre: `x + dropout(sublayer(norm(x)))`; after:
        `x + dropout(norm(sublayer(x)))`; sandwich: `x + dropout(norm(sublayer(norm(x))))`.
        """
        norm, dropout = getattr(self, f"{name}_norm"), getattr(self, f"{name}_dropout")
        placement = self.norm_placement
        y_btd = sublayer(norm(x_btd) if placement in ("pre", "sandwich") else x_btd)
        if placement in ("sandwich", "after"):
            output_norm = norm if placement == "after" else getattr(self, f"{name}_output_norm")
            y_btd = output_norm(y_btd)
        x_btd = x_btd + dropout(y_btd, part(keep, f"{name}_dropout"))
        return norm(x_btd) if placement == "post" else x_btd


class EncoderLayer(Layer):
    """Self-attention, then feed-forward, each as a residual sub-layer."""

    def __call__(
        self,
        x_btd: jax.Array,
        mask_bhts: jax.Array | None = None,
        keep: Keep | None = None,
        rotation: Rotation | None = None,
    ) -> jax.Array:
        def attend(y_btd: jax.Array) -> Any:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(
                y_btd, y_btd, mask_bhts, keep_bhts=keep_bhts, rotation=rotation
            )

        return self.run(x_btd, attend, keep=keep)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention to the memory, then feed-forward, each residual.

    Keys and values of the cross-attention are the memory, never normalised here. The layer of a
    decoder-only model (encoder_layers=0) has no cross-attention and takes no memory.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer: int = 0,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(config, layer, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.width = config.model_width
        if config.cross_attention:
            self.cross_attention = MultiHeadAttention(
                config, None, dtype=dtype, param_dtype=param_dtype, rngs=rngs
            )
            self._add_residual("cross_attention", config, param_dtype=param_dtype, rngs=rngs)

    def __call__(
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: jax.Array | None = None,
        cross_mask_bhts: jax.Array | None = None,
        keep: Keep | None = None,
        rotation: Rotation | None = None,
    ) -> jax.Array:
        memory_shape = None if memory_bsd is None else memory_bsd.shape
        cross_attention = hasattr(self, "cross_attention")
        checks.check_memory(cross_attention, self.width, memory_shape, cross_mask_bhts)

        def attend(y_btd: jax.Array) -> Any:
            keep_bhts = part(keep, "self_attention", "weights_dropout")
            return self.self_attention(
                y_btd, y_btd, self_mask_bhts, causal=True, keep_bhts=keep_bhts, rotation=rotation
            )

        if memory_bsd is None:
            return self.run(x_btd, attend, keep=keep)
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)

        def attend_to_memory(y_btd: jax.Array) -> Any:
            keep_bhts = part(keep, "cross_attention", "weights_dropout")
            return self.cross_attention(y_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        return self.run(x_btd, attend, attend_to_memory, keep)
