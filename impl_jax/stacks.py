"""The encoder and the decoder: a stack of layers, with a final norm by config."""

from collections.abc import Callable
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

Through = Callable[[Any, jax.Array, Rotation | None, int], jax.Array]


class Stack(nnx.Module):
    """`x = layer_n(x)` for every layer, then the final norm by config: vectors `b t d` in and out.

    The layers are a Python loop over an `nnx.List`, since they may differ. The Transformer applies
    embedding_dropout before the call.
    """

    def __init__(
        self, config: TransformerConfig, *,
        dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        self.embedding_dropout = Dropout(config.dropout_rate, rngs=rngs)
        layers = self.make_layers(config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.layers = nnx.List(layers)
        self.final_norm = norm(config, param_dtype=param_dtype) if config.final_norm else None
        self.config = config

    def make_layers(self, config: TransformerConfig, **own: Any) -> list[Any]:
        """The layers that the config says."""
        raise NotImplementedError

    def walk(
        self,
        x_btd: jax.Array,
        through: Through,
        position_bt: jax.Array | None = None,
        length: Any = None,
    ) -> jax.Array:
        """`x = through(layer, x, rotation, index)` for every layer, then the final norm.

        position_bt: of the tokens, for layers that rotate; by default token t has position t.
        length: see `rotations`.
        """
        turned = rotations(self.config, range(len(self.layers)), x_btd, position_bt, length)
        for index, layer in enumerate(self.layers):
            x_btd = through(layer, x_btd, turned[index], index)
        return self.final_norm(x_btd) if self.final_norm else x_btd


class Encoder(Stack):
    """The stack of the source. A layer of another class takes x and the mask."""

    def make_layers(self, config: TransformerConfig, **own: Any) -> list[Any]:
        return [EncoderLayer(config, index, **own) for index in range(config.encoder_layers)]

    def __call__(
        self,
        x_bsd: jax.Array,
        mask_bhts: jax.Array | None = None,
        keep: Keep | None = None,
        position_bs: jax.Array | None = None,
    ) -> jax.Array:
        return self.walk(x_bsd, self.through(mask_bhts, keep), position_bs)

    def through(self, mask_bhts: Any = None, keep: Keep | None = None) -> Through:
        """How `walk` calls a layer."""

        def call(layer: Any, x: jax.Array, rotation: Rotation | None, index: int) -> jax.Array:
            return layer(x, mask_bhts, **optional(rotation, keep, index))

        return call


class Decoder(Stack):
    """The stack of the target, whose layers attend to the memory; a decoder-only model has none.

    A layer of another class takes x, the memory and both masks.
    """

    def make_layers(self, config: TransformerConfig, **own: Any) -> list[Any]:
        return [DecoderLayer(config, index, **own) for index in range(config.decoder_layers)]

    def __call__(
        self,
        x_btd: jax.Array,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: jax.Array | None = None,
        cross_mask_bhts: jax.Array | None = None,
        keep: Keep | None = None,
        position_bt: jax.Array | None = None,
    ) -> jax.Array:
        through = self.through(memory_bsd, self_mask_bhts, cross_mask_bhts, keep)
        return self.walk(x_btd, through, position_bt)

    def through(
        self,
        memory_bsd: jax.Array | None = None,
        self_mask_bhts: Any = None,
        cross_mask_bhts: Any = None,
        keep: Keep | None = None,
    ) -> Through:
        """How `walk` calls a layer."""

        def call(layer: Any, x: jax.Array, rotation: Rotation | None, index: int) -> jax.Array:
            given = optional(rotation, keep, index)
            return layer(x, memory_bsd, self_mask_bhts, cross_mask_bhts, **given)

        return call


def optional(rotation: Rotation | None, keep: Keep | None, index: int) -> dict[str, Any]:
    """The rotation and the keep masks of a layer, if it has them: others need not take them."""
    given = {"rotation": rotation, "keep": part(keep, "layers", str(index))}
    return {name: value for name, value in given.items() if value is not None}
