"""Encoder and decoder: stacks of layers, with a final norm where the config has one."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig

from .dropout import Dropout, Tree
from .fast.packing import Packing
from .layers import DecoderLayer, EncoderLayer
from .normalization import LayerNorm

__all__ = ["Decoder", "Encoder"]


class Encoder(nnx.Module):
    """`x = layer_n(x)` for every layer, then the final norm where the config has one. Vectors in, vectors out: `b s d`.

    The layers are an `nnx.List`, which XLA unrolls. embedding_dropout: of the embedding, which the Transformer applies before the call.
    packing: as of `EncoderLayer`.
    """

    def __init__(self, config: TransformerConfig, *, dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs) -> None:
        self.embedding_dropout = Dropout(config.dropout_rate, rngs=rngs)
        self.layers = nnx.List(EncoderLayer(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs) for _ in range(config.encoder_layers))
        self.final_norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype) if config.final_norm else None

    def __call__(
        self, x_bsd: jax.Array, mask_bhts: jax.Array | None = None, keep: Tree | None = None, packing: Packing | None = None
    ) -> jax.Array:
        layer_keep = (keep or {}).get("layers", {})
        for index, layer in enumerate(self.layers):
            x_bsd = layer(x_bsd, mask_bhts, layer_keep.get(str(index)), packing)
        return self.final_norm(x_bsd) if self.final_norm else x_bsd


class Decoder(nnx.Module):
    """`x = layer_n(x, memory)` for every layer, then the final norm where the config has one. Vectors in, vectors out: `b t d`.

    memory: None of a decoder alone. Otherwise as `Encoder`.
    """

    def __init__(self, config: TransformerConfig, *, dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs) -> None:
        self.embedding_dropout = Dropout(config.dropout_rate, rngs=rngs)
        self.layers = nnx.List(DecoderLayer(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs) for _ in range(config.decoder_layers))
        self.final_norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype) if config.final_norm else None

    def __call__(
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: jax.Array | None = None,
        cross_mask_bhts: jax.Array | None = None,
        keep: Tree | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> jax.Array:
        layer_keep = (keep or {}).get("layers", {})
        for index, layer in enumerate(self.layers):
            own_keep = layer_keep.get(str(index))
            x_btd = layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, own_keep, packing, memory_packing)
        return self.final_norm(x_btd) if self.final_norm else x_btd
