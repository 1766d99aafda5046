"""Decoding in steps: the keys and values of what has been read are kept, so that a step computes its own tokens only."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reference_numpy import checks

from .fast.fused import fused
from .lengths import bucket
from .mask import padding_mask, token_mask
from .positional_encoding import positional_encoding, token_positions
from .projection import Joined
from .transformer import Transformer

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

# As the truth's, with room for a fixed number of positions; read: how many are filled. Keys and values are `b g s k` and `b g s e`.
Cache = Mapping[str, Any]


def start_cache(model: Transformer, memory_bsd: jax.Array, source_mask_bs: jax.Array | None = None, *, length: int) -> Cache:
    """length: the positions of the target that the cache has room for."""
    model = fused(model)
    checks.check_features("memory", memory_bsd.shape, model.config.model_width)
    if source_mask_bs is not None:
        checks.check_token_mask("source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory_bsd.shape[:2])
    batch, sizes = len(memory_bsd), model.config.sizes
    nothing = tuple(jnp.zeros((batch, sizes["g"], length, sizes[size]), memory_bsd.dtype) for size in "ke")
    return {
        "read": jnp.zeros((), jnp.int32),
        "source_mask_bs": source_mask_bs,
        "target_mask_bt": jnp.zeros((batch, length), bool),
        "layers": [
            {"self_attention": nothing, "cross_attention": layer.cross_attention.keys_and_values(memory_bsd)}
            for layer in model.decoder.layers
        ],
    }


def decode_step(model: Transformer, target: jax.Array, cache: Cache, target_mask_bt: jax.Array | None = None) -> tuple[jax.Array, Cache]:
    """model: best what `fused` made; any other is fused at every call. A concrete cache without room for the tokens raises ValueError."""
    model = fused(model)
    x_btd, cache = read_tokens(model, target, cache, target_mask_bt)
    return next_logits(model, x_btd), cache


def decode_in_steps(
    model: Transformer,
    target: jax.Array,
    memory_bsd: jax.Array,
    splits: Sequence[int],
    source_mask_bs: jax.Array | None = None,
    target_mask_bt: jax.Array | None = None,
    compiled: bool = True,
) -> jax.Array:
    """compiled: one program for each length of a step; otherwise operation by operation."""
    (model.target_embedding or model.source_embedding).check_ids(target)
    checks.check_splits(splits, target.shape)
    if target_mask_bt is not None:
        checks.check_token_mask("target mask", target_mask_bt.shape, str(target_mask_bt.dtype), target.shape[:2])
    start, step = (_start_cache, _decode_step) if compiled else (start_cache, decode_step)
    model, logits = fused(model), []
    cache = start(model, memory_bsd, source_mask_bs, length=bucket(target.shape[1]))
    for end, length in zip(itertools.accumulate(splits), splits, strict=True):
        part = slice(end - length, end)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = step(model, target[:, part], cache, part_mask_bt)
        logits.append(logits_btv)
    return jnp.concatenate(logits, axis=1)


_start_cache = functools.partial(jax.jit, static_argnames="length")(start_cache)
_decode_step = functools.partial(jax.jit, donate_argnames="cache")(decode_step)


def reorder(cache: Cache, row_b: jax.Array) -> Cache:
    """A copy of the whole cache. `beam_search` does without: its beams are queries of one row (see `Beams`)."""
    source_mask_bs = cache["source_mask_bs"]
    return {
        "read": cache["read"],
        "source_mask_bs": None if source_mask_bs is None else source_mask_bs[row_b],
        "target_mask_bt": cache["target_mask_bt"][row_b],
        "layers": jax.tree.map(lambda held: held[row_b], cache["layers"]),
    }


def read_tokens(model: Transformer, target: jax.Array, cache: Cache, target_mask_bt: jax.Array | None = None) -> tuple[jax.Array, Cache]:
    """The decoder's vectors `b t d` of the next tokens, and the cache after them."""
    checks.check_same_batch(cache=cache["target_mask_bt"].shape, target=target.shape)
    if target_mask_bt is None:
        target_mask_bt = token_mask(target, model.config.padding_id)
    checks.check_token_mask("target mask", target_mask_bt.shape, str(target_mask_bt.dtype), target.shape[:2])
    place, length, room = cache["read"], target.shape[1], cache["target_mask_bt"].shape[1]
    read_bt = jax.lax.dynamic_update_slice_in_dim(cache["target_mask_bt"], jnp.asarray(target_mask_bt), place, axis=1)
    position_bt = jax.lax.dynamic_slice_in_dim(token_positions(read_bt), place, length, axis=1)
    causal_mask_bhts = (jnp.arange(room) <= place + jnp.arange(length)[:, None])[None, None]
    self_mask_bhts = padding_mask(read_bt) & causal_mask_bhts
    return read_at(model, target, {**cache, "target_mask_bt": read_bt}, position_bt, self_mask_bhts)


def read_at(
    model: Transformer, target: jax.Array, cache: Cache, position_bt: jax.Array, self_mask_bhts: jax.Array
) -> tuple[jax.Array, Cache]:
    """The same for tokens of any positions, which may attend to what the mask says: the next ones of a target, or those of many beams."""
    place, room = cache["read"], cache["target_mask_bt"].shape[1]
    if not isinstance(place, jax.core.Tracer) and int(place) + target.shape[1] > room:
        raise ValueError(f"the cache must have room for {int(place) + target.shape[1]} tokens; got length={room}")
    x_btd = (model.target_embedding or model.source_embedding)(target)
    table_td = positional_encoding(np.arange(room), model.config.model_width, x_btd.dtype)
    x_btd = x_btd + table_td[position_bt]
    cross_mask_bhts = None if cache["source_mask_bs"] is None else padding_mask(cache["source_mask_bs"])
    grown = []
    for layer, layer_cache in zip(model.decoder.layers, cache["layers"], strict=True):
        x_btd, layer_cache = layer.step(x_btd, layer_cache, place, self_mask_bhts, cross_mask_bhts)
        grown.append(layer_cache)
    x_btd = model.decoder.final_norm(x_btd) if model.decoder.final_norm else x_btd
    return x_btd, {**cache, "read": place + target.shape[1], "layers": grown}


def next_logits(model: Transformer, x_btd: jax.Array) -> jax.Array:
    """The logits `b t v` of the token after each vector of the decoder."""
    if isinstance(model.logits, Joined):
        return model.logits(x_btd)
    return model.logits(x_btd, (model.target_embedding or model.source_embedding).table.T)
