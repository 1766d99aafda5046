"""Encoder and decoder: stacks of layers, with a final norm by config."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig

from .dropout import Dropout, Keep, part
from .layers import DecoderLayer, EncoderLayer
from .normalization import LayerNorm

__all__ = ["Decoder", "Encoder"]


class Encoder(nnx.Module):
    """`x = layer_n(x)` for every layer, then the final norm by config: vectors `b s d` in and out.

    The layers are a Python loop over an `nnx.List`, since they may differ. The Transformer applies
    embedding_dropout before the call. A layer of another class takes x and the mask.
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
        norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
        self.final_norm = norm if config.final_norm else None

    def __call__(
        self, x_bsd: jax.Array, mask_bhts: jax.Array | None = None, keep: Keep | None = None
    ) -> jax.Array:
        for index, layer in enumerate(self.layers):
            x_bsd = layer(x_bsd, mask_bhts, **_keep(keep, index))
        return self.final_norm(x_bsd) if self.final_norm else x_bsd


class Decoder(nnx.Module):
    """`x = layer_n(x, memory)` for every layer, then the final norm by config: vectors `b t d`.

    A decoder-only model has no memory. A layer of another class takes x, the memory and both masks.
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
        norm = LayerNorm(config.model_width, config.epsilon, param_dtype=param_dtype)
        self.final_norm = norm if config.final_norm else None

    def __call__(
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: jax.Array | None = None,
        cross_mask_bhts: jax.Array | None = None,
        keep: Keep | None = None,
    ) -> jax.Array:
        for index, layer in enumerate(self.layers):
            x_btd = layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, **_keep(keep, index))
        return self.final_norm(x_btd) if self.final_norm else x_btd


def _keep(keep: Keep | None, index: int) -> dict[str, Keep]:
    """The argument `keep` of a layer, if it has keep masks: a layer of another class takes none."""
    layer_keep = part(keep, "layers", str(index))
    return {} if layer_keep is None else {"keep": layer_keep}
