"""The encoder and the decoder: a stack of layers, with a final norm by config."""

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig
from reference_numpy.rotary_scaling import RotaryScaling

from .dropout import Dropout, Keep, part
from .layers import DecoderLayer, EncoderLayer
from .normalization import norm
from .rotary import Rotation, rotation
from .values import Mask, Own, given

__all__ = ["Decoder", "Encoder"]

Through = Callable[[Any, jax.Array, Rotation | None, int], jax.Array]


class Stack(nnx.Module):
    """`x = layer_n(x)` for every layer, then the final norm by config: vectors `b t d` in and out.

    The layers are a Python loop over an `nnx.List`, since they may differ; one of another class
    takes no rotation and no keep masks unless there are some. The Transformer applies
    embedding_dropout. length: see `rotation`.
    """

    kind: type[EncoderLayer | DecoderLayer]  # of the layers

    def __init__(self, config: TransformerConfig, **own: Unpack[Own]) -> None:
        of_source = issubclass(self.kind, EncoderLayer)
        count = config.encoder_layers if of_source else config.decoder_layers
        self.embedding_dropout = Dropout(config.dropout_rate, rngs=own["rngs"])
        self.layers = nnx.List(self.kind(config, index, **own) for index in range(count))
        self.final_norm = norm(config, **own) if config.final_norm else None
        self.config = config

    def walk(
        self,
        x_btd: jax.Array,
        through: Through,
        position_bt: jax.Array | None = None,
        length: jax.Array | None = None,
    ) -> jax.Array:
        """`x = through(layer, x, rotation, index)` for every layer, then the final norm.

        position_bt: of the tokens, for layers that rotate; by default token t has position t.
        """
        rotations: dict[tuple[float, RotaryScaling], Rotation] = {}
        for index, layer in enumerate(self.layers):
            kind = self.config.layer_kind(index)
            key = kind.base, kind.scaling  # what a rotation depends on
            if kind.rotary and key not in rotations:
                if position_bt is None:
                    position_bt = jnp.arange(x_btd.shape[1])[None]
                rotations[key] = rotation(self.config, kind, position_bt, x_btd.dtype, length)
            x_btd = through(layer, x_btd, rotations[key] if kind.rotary else None, index)
        return self.final_norm(x_btd) if self.final_norm else x_btd


class Encoder(Stack):
    """The stack of the source. A layer of another class takes x and the mask."""

    kind = EncoderLayer

    def __call__(
        self,
        x_bsd: jax.Array,
        mask_bhts: Mask = None,
        keep: Keep | None = None,
        position_bs: jax.Array | None = None,
        length: jax.Array | None = None,
    ) -> jax.Array:
        def through(
            layer: EncoderLayer, x_bsd: jax.Array, rotation: Rotation | None, index: int
        ) -> jax.Array:
            others = given(rotation=rotation, keep=part(keep, "layers", str(index)))
            return layer(x_bsd, mask_bhts, **others)

        return self.walk(x_bsd, through, position_bs, length)


class Decoder(Stack):
    """The stack of the target, whose layers attend to the memory; a decoder-only model has none.

    A layer of another class takes x, the memory and both masks.
    """

    kind = DecoderLayer

    def __call__(
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: Mask = None,
        cross_mask_bhts: Mask = None,
        keep: Keep | None = None,
        position_bt: jax.Array | None = None,
        length: jax.Array | None = None,
    ) -> jax.Array:
        def through(
            layer: DecoderLayer, x_btd: jax.Array, rotation: Rotation | None, index: int
        ) -> jax.Array:
            others = given(rotation=rotation, keep=part(keep, "layers", str(index)))
            return layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, **others)

        return self.walk(x_btd, through, position_bt, length)
