"""Encoder and decoder: the stacks of layers, from vectors to vectors."""

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
    """`x = layer_i(x)` for every layer, then the final norm: vectors in, vectors out.

    Layers are a Python loop over an `nnx.List`, since they may differ; layers of other classes need
    not take rotation and keep masks if there are none. The Transformer applies embedding_dropout.
    length: as in `rotation`.
    """

    kind: type[EncoderLayer | DecoderLayer]  # class of the layers

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

        position_bt: for layers that rotate; default, token t has position t.
        """
        rotations: dict[tuple[float, RotaryScaling], Rotation] = {}
        for index, layer in enumerate(self.layers):
            kind = self.config.layer_kind(index)
            key = kind.base, kind.scaling  # the rotation depends only on these
            if kind.rotary and key not in rotations:
                if position_bt is None:
                    position_bt = jnp.arange(x_btd.shape[1])[None]
                rotations[key] = rotation(self.config, kind, position_bt, x_btd.dtype, length)
            x_btd = through(layer, x_btd, rotations[key] if kind.rotary else None, index)
        return self.final_norm(x_btd) if self.final_norm else x_btd


class Encoder(Stack):
    """The stack of the source. Layers of other classes take x and the mask."""

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
    """The stack of the target, whose layers attend to the memory, if there is one.

    Layers of other classes take x, the memory and both masks. routed: collects the logits of the
    layers' routers.
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
        routed: list[jax.Array] | None = None,
    ) -> jax.Array:
        def through(
            layer: DecoderLayer, x_btd: jax.Array, rotation: Rotation | None, index: int
        ) -> jax.Array:
            own = part(keep, "layers", str(index))
            others = given(rotation=rotation, keep=own, routed=routed)
            return layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, **others)

        return self.walk(x_btd, through, position_bt, length)
