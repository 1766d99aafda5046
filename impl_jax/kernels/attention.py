"""Attention of many queries in chunks, whose memory grows with s, and of few queries by head."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..mask import combine_masks
from ..precision import upcast_dtype
from ..softmax import softmax

__all__ = ["attend_by_head", "chunk_lengths", "in_chunks"]

# The most weights that are computed together: about what the cache of a CPU holds, or memory.
MOST = {"cpu": 1 << 22, "default": 1 << 28}


def chunk_lengths(batch: int, heads: int, target: int, source: int) -> tuple[int, ...]:
    """How many queries each platform computes together; () if all, or if a size is symbolic."""
    if not all(isinstance(size, int) for size in (batch, heads, target, source)):
        return ()
    lengths = tuple(
        min(target, max(1, most // max(1, batch * heads * source))) for most in MOST.values()
    )
    return lengths if min(lengths) < target else ()


def in_chunks(
    attention: Callable[..., tuple[jax.Array, jax.Array]],
    query_bthk: jax.Array,
    key_bsgk: jax.Array,
    value_bsge: jax.Array,
    mask_bhts: jax.Array | None = None,
    bias_bhts: jax.Array | None = None,
    causal: bool = False,
    lengths: tuple[int, ...] | None = None,
) -> jax.Array:
    """The output of `attention(query, key, value, mask, bias, causal)`, which gives weights too.

    lengths: the queries that are computed together on each platform, by default `chunk_lengths`;
    the platform is the arrays', or the one that the program is lowered for.
    """
    given = query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts
    if lengths is None:
        batch, target, heads, _ = query_bthk.shape
        lengths = chunk_lengths(batch, heads, target, key_bsgk.shape[1])
    if not lengths:
        return attention(*given, causal)[0]
    return _on_platform(attention, causal, lengths, *given)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _on_platform(
    attention: Callable[..., Any], causal: bool, lengths: tuple[int, ...], *given: jax.Array | None
) -> jax.Array:
    branches = {
        name: functools.partial(_in_chunks, attention, causal, length)
        for name, length in zip(MOST, lengths, strict=True)
    }
    return jax.lax.platform_dependent(*given, **branches)


def _in_chunks(
    attention: Callable[..., Any],
    causal: bool,
    length: int,
    query_bthk: jax.Array,
    key_bsgk: jax.Array,
    value_bsge: jax.Array,
    mask_bhts: jax.Array | None,
    bias_bhts: jax.Array | None,
) -> jax.Array:
    """The output, computed for `length` queries at a time; the backward pass computes it again."""
    target, source = query_bthk.shape[1], key_bsgk.shape[1]
    if length == target:
        return attention(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal)[0]

    def rows(x_bhts: jax.Array | None, start: Any, count: int) -> jax.Array | None:
        if x_bhts is None or x_bhts.shape[2] == 1:
            return x_bhts
        return jax.lax.dynamic_slice_in_dim(x_bhts, start, count, axis=2)

    @functools.partial(jax.checkpoint, static_argnums=1)
    def attend(start: Any, count: int) -> Any:
        mask_bhcs = rows(mask_bhts, start, count)
        if causal:
            last_c1 = start + jnp.arange(count)[:, None] + source - target
            mask_bhcs = combine_masks(mask_bhcs, (jnp.arange(source) <= last_c1)[None, None])
        query_bchk = jax.lax.dynamic_slice_in_dim(query_bthk, start, count, axis=1)
        bias_bhcs = rows(bias_bhts, start, count)
        return attention(query_bchk, key_bsgk, value_bsge, mask_bhcs, bias_bhcs)[0]

    whole = target - target % length
    output_nbche = jax.lax.map(lambda start: attend(start, length), jnp.arange(0, whole, length))
    output_bthe = jax.lax.collapse(jnp.moveaxis(output_nbche, 0, 1), 1, 3)
    if whole == target:
        return output_bthe
    return jnp.concatenate([output_bthe, attend(whole, target - whole)], axis=1)


def attend_by_head(
    query_bthk: jax.Array,
    key_bgsk: jax.Array,
    value_bgse: jax.Array,
    mask_bhts: jax.Array | None = None,
) -> jax.Array:
    """`scaled_dot_product_attention`, `b t h e`, of few queries to keys that lie by head.

    The heads that share a key head are rows of one product. Keys and values have the heads before
    the positions, so that each head reads one piece of memory.
    """
    (batch, target, heads, size), (_, groups, source, _) = query_bthk.shape, key_bgsk.shape
    query_bgrk = query_bthk.swapaxes(1, 2).reshape(batch, groups, heads // groups * target, size)
    dtype = upcast_dtype(query_bthk.dtype)
    logits_bgrs = jnp.einsum("bgrk,bgsk->bgrs", query_bgrk, key_bgsk, preferred_element_type=dtype)
    logits_bhts = (logits_bgrs * size**-0.5).reshape(batch, heads, target, source)
    weights_bhts = softmax(logits_bhts, mask_bhts).astype(query_bthk.dtype)
    output_bgre = jnp.einsum("bgrs,bgse->bgre", weights_bhts.reshape(logits_bgrs.shape), value_bgse)
    return output_bgre.reshape(batch, heads, target, value_bgse.shape[3]).swapaxes(1, 2)
