"""A cache of fixed length, which programs write in place, and the decoder's step on it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from reference_numpy import TransformerConfig

from .. import inputs
from ..framework import is_traced
from ..layers import DecoderLayer
from ..mask import padding_mask
from ..positional_encoding import token_positions
from ..transformer import Transformer
from .attention import attend_by_head

__all__ = ["Cache", "empty", "forward_step", "next_tokens"]

# source_mask_bs; target_mask_bt, False where nothing has been read; layers: the keys and values of each, of self_attention and, where there
# is a memory, cross_attention; read: how many positions are filled. Keys `b g s k` and values `b g s e` lie as `attend_by_head` reads them.
Cache = Mapping[str, Any]
Pair = tuple[jax.Array, jax.Array]


def empty(
    model: Transformer,
    memory_bsd: jax.Array | None,
    source_mask_bs: jax.Array | None,
    batch: int | None,
    length: int,
) -> Cache:
    """`start_cache` on what has been checked."""
    rows: Any = batch if memory_bsd is None else len(memory_bsd)
    sizes, embedding = model.config.sizes, model.embedding_of("target")
    key_bgsk, value_bgse = (
        jnp.zeros((rows, sizes["g"], length, sizes[size]), embedding.dtype or embedding.table.dtype)
        for size in "ke"
    )
    layers: list[dict[str, Pair]] = [
        {"self_attention": (key_bgsk, value_bgse)} for _ in model.decoder.layers
    ]
    if memory_bsd is not None:
        for layer, layer_cache in zip(model.decoder.layers, layers, strict=True):
            layer_cache["cross_attention"] = _by_head(
                layer.cross_attention.keys_and_values(memory_bsd)
            )
    return {
        "read": jnp.zeros((), jnp.int32),
        "source_mask_bs": source_mask_bs,
        "target_mask_bt": jnp.zeros((rows, length), bool),
        "layers": layers,
    }


def next_tokens(
    config: TransformerConfig, cache: Cache, target_mask_bt: jax.Array
) -> tuple[Cache, jax.Array, jax.Array]:
    """The next tokens of a target, of which the mask says which are real: the cache with this mask in it, and what `forward_step` takes."""
    place, length, room = cache["read"], target_mask_bt.shape[1], cache["target_mask_bt"].shape[1]
    read_bt = jax.lax.dynamic_update_slice_in_dim(
        cache["target_mask_bt"], jnp.asarray(target_mask_bt), place, axis=1
    )
    position_bt = jax.lax.dynamic_slice_in_dim(
        token_positions(read_bt, config.position_start), place, length, axis=1
    )
    causal_mask_bhts = (jnp.arange(room) <= place + jnp.arange(length)[:, None])[None, None]
    return (
        {**cache, "target_mask_bt": read_bt},
        position_bt,
        padding_mask(read_bt) & causal_mask_bhts,
    )


def forward_step(
    model: Transformer,
    target: jax.Array,
    cache: Cache,
    position_bt: jax.Array,
    self_mask_bhts: jax.Array,
) -> tuple[jax.Array, Cache]:
    """The decoder's vectors `b t d` of more tokens, and the cache after them.

    The tokens have any positions and may attend to what the mask says: the next ones of a target (`next_tokens`), or those of many beams.
    """
    place, room = cache["read"], cache["target_mask_bt"].shape[1]
    if not is_traced(place) and int(place) + target.shape[1] > room:
        raise ValueError(
            f"the cache must have room for {int(place) + target.shape[1]} tokens; got length={room}"
        )
    x_btd = inputs.embed(model, "target", target, position_bt, length=room)
    cross_mask_bhts = (
        None if cache["source_mask_bs"] is None else padding_mask(cache["source_mask_bs"])
    )
    layers = []
    for layer, layer_cache in zip(model.decoder.layers, cache["layers"], strict=True):
        x_btd, layer_cache = _layer_step(
            layer, x_btd, layer_cache, place, self_mask_bhts, cross_mask_bhts
        )
        layers.append(layer_cache)
    x_btd = model.decoder.final_norm(x_btd) if model.decoder.final_norm else x_btd
    return x_btd, {**cache, "read": place + target.shape[1], "layers": layers}


def _layer_step(
    layer: DecoderLayer,
    x_btd: jax.Array,
    cache: Mapping[str, Pair],
    place: jax.Array,
    self_mask_bhts: jax.Array,
    cross_mask_bhts: Any,
) -> tuple[jax.Array, dict[str, Pair]]:
    """The layer on more tokens, whose keys and values are written at `place` and following.

    XLA writes in place where nothing else reads the old cache.
    """
    attention = layer.self_attention
    query_bthk, *new = attention.project(layer.residual_in("self_attention", x_btd))
    key_bgsk, value_bgse = (
        jax.lax.dynamic_update_slice_in_dim(held, part.astype(held.dtype), place, axis=2)
        for held, part in zip(cache["self_attention"], _by_head(new), strict=True)
    )
    y_btd = attention.output(attend_by_head(query_bthk, key_bgsk, value_bgse, self_mask_bhts))
    x_btd = layer.residual_out("self_attention", x_btd, y_btd, {})

    if "cross_attention" in cache:
        attention = layer.cross_attention
        query_bthk = attention.queries(layer.residual_in("cross_attention", x_btd))
        y_btd = attention.output(
            attend_by_head(query_bthk, *cache["cross_attention"], cross_mask_bhts)
        )
        x_btd = layer.residual_out("cross_attention", x_btd, y_btd, {})

    y_btd = layer.feed_forward(layer.residual_in("feed_forward", x_btd))
    return layer.residual_out("feed_forward", x_btd, y_btd, {}), {
        **cache,
        "self_attention": (key_bgsk, value_bgse),
    }


def _by_head(pair: Any) -> Pair:
    """Keys and values with their heads before their positions."""
    key_bsgk, value_bsge = pair
    return key_bsgk.swapaxes(1, 2), value_bsge.swapaxes(1, 2)
