"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig, checks

from .mask import padding_mask
from .rotary import Rotation, rotations
from .stacks import Decoder, Encoder

__all__ = ["states"]

States = dict[str, dict[str, jax.Array]]


class Model(Protocol):
    """A `Transformer`."""

    config: TransformerConfig
    encoder: Encoder
    decoder: Decoder

    def embed(
        self, side: str, token: jax.Array, mask_bt: Any, /, *, segment_bt: Any = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def states(
    model: Model,
    source: jax.Array | None = None,
    target: jax.Array | None = None,
    source_mask_bs: jax.Array | None = None,
    target_mask_bt: jax.Array | None = None,
    segment_bs: jax.Array | None = None,
) -> States:
    """The vectors before the first layer and after every layer, and all attention weights.

    model: in any mode; this is evaluation. encoder: hidden_lbtd and self_attention_lbhts; decoder:
    the same and, with an encoder, cross_attention_lbhts; l layer, t query. There is one more of a
    stack's vectors than of its layers; the last are those after its final norm, if the config has
    one. Arguments and errors as the call; each stack of the config needs its tokens.
    """
    config, of_source = model.config, {"source_mask_bs": source_mask_bs, "segment_bs": segment_bs}
    checks.check_source_given(config.encoder_layers, source, **of_source)
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    model, result = nnx.view(model, deterministic=True), {}
    memory_bsd, cross_mask_bhts = None, None
    if source is not None:
        x_bsd, mask_bs, position_bs = model.embed(
            "source", source, source_mask_bs, segment_bt=segment_bs
        )
        cross_mask_bhts = padding_mask(mask_bs)
        rest = position_bs, None, cross_mask_bhts, None, False
        result["encoder"] = _stack(model.encoder, x_bsd, *rest)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, mask_bt, position_bt = model.embed("target", target, target_mask_bt)
        masks = padding_mask(mask_bt), cross_mask_bhts
        result["decoder"] = _stack(model.decoder, x_btd, position_bt, memory_bsd, *masks, True)
    return result


def _stack(
    stack: Encoder | Decoder,
    x_btd: jax.Array,
    position_bt: jax.Array,
    memory_bsd: jax.Array | None,
    self_mask_bhts: jax.Array,
    cross_mask_bhts: jax.Array | None,
    causal: bool,
) -> dict[str, jax.Array]:
    """The call of an `Encoder` or `Decoder`, and what it computes on the way."""
    hidden, own, cross = [x_btd], list[jax.Array](), list[jax.Array]()
    turned = rotations(stack.config, range(len(stack.layers)), x_btd, position_bt)
    for layer, rotation in zip(stack.layers, turned, strict=True):
        attend = _recorded(layer.self_attention, None, self_mask_bhts, causal, own, rotation)
        attend_to_memory = None
        if memory_bsd is not None:
            attention = layer.cross_attention
            attend_to_memory = _recorded(attention, memory_bsd, cross_mask_bhts, False, cross)
        x_btd = layer.run(x_btd, attend, attend_to_memory)
        hidden.append(x_btd)
    hidden[-1] = stack.final_norm(x_btd) if stack.final_norm else x_btd
    result = {"hidden_lbtd": hidden, "self_attention_lbhts": own, "cross_attention_lbhts": cross}
    return {name: jnp.stack(arrays) for name, arrays in result.items() if arrays}


def _recorded(
    attention: Any,
    memory_bsd: jax.Array | None,
    mask_bhts: Any,
    causal: bool,
    weights: list[jax.Array],
    rotation: Rotation | None = None,
) -> Callable[[jax.Array], jax.Array]:
    """The attention of vectors to a memory or themselves, which adds its weights to a list."""

    def attend(y_btd: jax.Array) -> jax.Array:
        read_bsd = y_btd if memory_bsd is None else memory_bsd
        given = {} if rotation is None else {"rotation": rotation}
        y_btd, weights_bhts = attention(
            y_btd, read_bsd, mask_bhts, causal=causal, return_weights=True, **given
        )
        weights.append(weights_bhts)
        return y_btd

    return attend
