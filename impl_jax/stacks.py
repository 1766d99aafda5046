"""Encoder and decoder: stacks of layers, with a final norm by config."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig

from .dropout import Dropout, Keep, part
from .layers import DecoderLayer, EncoderLayer
from .normalization import norm
from .rotary import Rotation, rotations

__all__ = ["Decoder", "Encoder"]


class Encoder(nnx.Module):
    """`x = layer_n(x)` for every layer, then the final norm by config: vectors `b s d` in and out.

    The layers are a Python loop over an `nnx.List`, since they may differ. The Transformer applies
    embedding_dropout before the call. position_bs: of the tokens, for layers that rotate; by
    default token s has position s. A layer of another class takes x and the mask.
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
            EncoderLayer(config, index, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
            for index in range(config.encoder_layers)
        )
        self.final_norm = norm(config, param_dtype=param_dtype) if config.final_norm else None
        self.config = config

    def __call__(
        self,
        x_bsd: jax.Array,
        mask_bhts: jax.Array | None = None,
        keep: Keep | None = None,
        position_bs: jax.Array | None = None,
    ) -> jax.Array:
        turned = rotations(self.config, range(len(self.layers)), x_bsd, position_bs)
        for index, layer in enumerate(self.layers):
            x_bsd = layer(x_bsd, mask_bhts, **_given(keep, turned, index))
        return self.final_norm(x_bsd) if self.final_norm else x_bsd


class Decoder(nnx.Module):
    """`x = layer_n(x, memory)` for every layer, then the final norm by config: vectors `b t d`.

    A decoder-only model has no memory. position_bt: as `Encoder`. A layer of another class takes x,
    the memory and both masks.
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
            DecoderLayer(config, index, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
            for index in range(config.decoder_layers)
        )
        self.final_norm = norm(config, param_dtype=param_dtype) if config.final_norm else None
        self.config = config

    def __call__(
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: jax.Array | None = None,
        cross_mask_bhts: jax.Array | None = None,
        keep: Keep | None = None,
        position_bt: jax.Array | None = None,
    ) -> jax.Array:
        turned = rotations(self.config, range(len(self.layers)), x_btd, position_bt)
        masks = self_mask_bhts, cross_mask_bhts
        for index, layer in enumerate(self.layers):
            x_btd = layer(x_btd, memory_bsd, *masks, **_given(keep, turned, index))
        return self.final_norm(x_btd) if self.final_norm else x_btd


def _given(keep: Keep | None, turned: list[Rotation | None], index: int) -> dict[str, Any]:
    """The keep masks and the rotation of a layer, if it has them: others need not take them."""
    given = {"keep": part(keep, "layers", str(index)), "rotation": turned[index]}
    return {name: value for name, value in given.items() if value is not None}
