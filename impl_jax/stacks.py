"""Encoder and decoder: stacks of layers, with a final norm where the config has one."""

from typing import Any

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
    packing: as of `EncoderLayer`. A layer of another class takes x and the mask.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.embedding_dropout = Dropout(config.dropout_rate, rngs=rngs)
        self.layers = nnx.List(
            EncoderLayer(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
            for _ in range(config.encoder_layers)
        )
        self.final_norm = (
            LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
            if config.final_norm
            else None
        )

    def __call__(
        self,
        x_bsd: jax.Array,
        mask_bhts: jax.Array | None = None,
        keep: Tree | None = None,
        packing: Packing | None = None,
    ) -> jax.Array:
        layer_keep = (keep or {}).get("layers", {})
        for index, layer in enumerate(self.layers):
            x_bsd = layer(
                x_bsd, mask_bhts, **_given(keep=layer_keep.get(str(index)), packing=packing)
            )
        return self.final_norm(x_bsd) if self.final_norm else x_bsd


class Decoder(nnx.Module):
    """`x = layer_n(x, memory)` for every layer, then the final norm where the config has one. Vectors in, vectors out: `b t d`.

    memory: None of a decoder alone. Otherwise as `Encoder`; a layer of another class takes x, the memory and both masks.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.embedding_dropout = Dropout(config.dropout_rate, rngs=rngs)
        self.layers = nnx.List(
            DecoderLayer(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
            for _ in range(config.decoder_layers)
        )
        self.final_norm = (
            LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
            if config.final_norm
            else None
        )

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
            given = _given(
                keep=layer_keep.get(str(index)), packing=packing, memory_packing=memory_packing
            )
            x_btd = layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, **given)
        return self.final_norm(x_btd) if self.final_norm else x_btd


def _given(**arguments: Any) -> dict[str, Any]:
    """What there is of the arguments that layers of other classes need not take."""
    return {name: value for name, value in arguments.items() if value is not None}
