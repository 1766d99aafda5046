"""Intermediate results of a model: the vectors between its layers, and its attention weights."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig

from .inputs import sides
from .layers import Layer
from .mask import padding_mask
from .rotary import Rotation
from .stacks import Decoder, Encoder
from .values import Mask, Text

__all__ = ["states"]

States = dict[str, dict[str, jax.Array]]


class Model(Protocol):
    """Interface of `Transformer` used here."""

    config: TransformerConfig
    encoder: Encoder
    decoder: Decoder

    def embed(self, side: str, text: Text, /) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def states(
    model: Model, source: Text | jax.Array | None = None, target: Text | jax.Array | None = None
) -> States:
    """Returns the vectors before the first and after every layer, and all attention weights.

    model: in any mode; evaluates. encoder: hidden_lbtd and self_attention_lbhts; decoder: the same
    and, with an encoder, cross_attention_lbhts; l layer, t query. The last vectors are taken after
    the final norm, if the config has one. Arguments and errors match the call.
    """
    source_text, target_text = sides(model.config, source, target)
    model, result = nnx.view(model, deterministic=True), {}
    memory_bsd, cross_mask_bhts = None, None
    if source_text is not None:
        x_bsd, mask_bs, position_bs = model.embed("source", source_text)
        cross_mask_bhts = padding_mask(mask_bs)
        result["encoder"] = _stack(model.encoder, x_bsd, position_bs, cross_mask_bhts)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target_text is not None:
        x_btd, mask_bt, position_bt = model.embed("target", target_text)
        result["decoder"] = _stack(
            model.decoder, x_btd, position_bt, padding_mask(mask_bt), memory_bsd, cross_mask_bhts
        )
    return result


def _stack(
    stack: Encoder | Decoder,
    x_btd: jax.Array,
    position_bt: jax.Array,
    self_mask_bhts: jax.Array,
    memory_bsd: jax.Array | None = None,
    cross_mask_bhts: Mask = None,
) -> dict[str, jax.Array]:
    """Runs a stack and returns its vectors and attention weights."""
    hidden, own, cross = [x_btd], list[jax.Array](), list[jax.Array]()

    def through(layer: Layer, x: jax.Array, rotation: Rotation | None, index: int) -> jax.Array:
        def attend(y_btd: jax.Array) -> jax.Array:
            heads = layer.self_attention.project(y_btd, y_btd, rotation)
            own.append(layer.self_attention.weights(heads, self_mask_bhts))
            return layer.self_attention.attend(heads, self_mask_bhts)

        def attend_to_memory(y_btd: jax.Array) -> jax.Array:
            memory: Any = memory_bsd
            heads = layer.cross_attention.project(y_btd, memory)
            cross.append(layer.cross_attention.weights(heads, cross_mask_bhts))
            return layer.cross_attention.attend(heads, cross_mask_bhts)

        hidden.append(layer.run(x, attend, None if memory_bsd is None else attend_to_memory))
        return hidden[-1]

    hidden[-1] = stack.walk(x_btd, through, position_bt)
    result = {"hidden_lbtd": hidden, "self_attention_lbhts": own, "cross_attention_lbhts": cross}
    return {name: jnp.stack(arrays) for name, arrays in result.items() if arrays}
