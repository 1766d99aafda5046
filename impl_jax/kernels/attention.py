"""Attention of many queries in chunks, with memory in O(s), and of few queries per head."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from reference_numpy.scores import Scores

from ..framework import einsum
from ..mask import combine_masks
from ..precision import upcast_dtype
from ..softmax import soft_cap, softmax
from ..values import Heads, Mask

__all__ = ["attend_by_head", "chunk_lengths", "in_chunks"]

Weights = Callable[[jax.Array, jax.Array, Mask, Scores, Mask], jax.Array]
Beside = Callable[[jax.Array, Mask], tuple[jax.Array, Mask]]

# Weights computed at once: about what fits a CPU's cache, or memory.
MOST = {"cpu": 1 << 22, "default": 1 << 28}
UNROLLED = 8  # most chunks unrolled in a program


def chunk_lengths(batch: int, heads: int, target: int, source: int) -> tuple[int, ...]:
    """Returns how many queries each platform computes at once; () for all or symbolic sizes."""
    if not all(isinstance(size, int) for size in (batch, heads, target, source)):
        return ()
    longest = (max(1, most // max(1, batch * heads * source)) for most in MOST.values())
    lengths = tuple(math.ceil(target / max(1, math.ceil(target / length))) for length in longest)
    return lengths if min(lengths) < target else ()


@functools.partial(jax.jit, static_argnames=("weights", "scores", "lengths"), inline=True)
def in_chunks(
    weights: Weights, heads: Heads, mask_bhts: Mask, scores: Scores, lengths: tuple[int, ...]
) -> jax.Array:
    """`weights(query, key, mask, scores, sink) value`, computed for some queries at a time.

    heads: as many value heads as query heads. lengths: see `chunk_lengths`; the platform is that of
    the arrays, or the one that the program is lowered for.
    """
    chunked = {
        platform: functools.partial(_in_chunks_of, length, weights, scores)
        for platform, length in zip(MOST, lengths, strict=True)
    }
    return jax.lax.platform_dependent(heads, mask_bhts, **chunked)


def _in_chunks_of(
    length: int, weights: Weights, scores: Scores, heads: Heads, mask_bhts: Mask
) -> jax.Array:
    """Computes the output for `length` queries at a time; the backward pass recomputes it.

    With a window, a chunk reads only the keys that its queries may attend to.
    """

    def attention(heads: Heads, mask_bhts: Mask, scores: Scores) -> jax.Array:
        query_bthk, key_bsgk, value_bshe, sink_h = heads
        weights_bhts = weights(query_bthk, key_bsgk, mask_bhts, scores, sink_h)
        return einsum("bhts,bshe->bthe", weights_bhts, value_bshe)

    target, source = heads.query_bthk.shape[1], heads.key_bsgk.shape[1]
    if length == target:
        return attention(heads, mask_bhts, scores)
    causal, window = scores.causal, scores.window
    inside = scores._replace(causal=False, window=0)

    def attend(start: int | jax.Array, count: int, seen: int) -> jax.Array:
        last = start + source - target
        first = jnp.clip(last - window + 1, 0, source - seen) if window else 0
        query_bchk = jax.lax.dynamic_slice_in_dim(heads.query_bthk, start, count, axis=1)
        key_brgk, value_brhe = (
            x if seen == source else jax.lax.dynamic_slice_in_dim(x, first, seen, axis=1)
            for x in (heads.key_bsgk, heads.value_bsge)
        )
        mask_bhcr = _sliced(_sliced(mask_bhts, 2, start, count), 3, first, seen)
        last_c1 = last + jnp.arange(count)[:, None]
        key_r = jnp.arange(seen) + first
        if causal:
            mask_bhcr = combine_masks(mask_bhcr, (key_r <= last_c1)[None, None])
        if window:
            mask_bhcr = combine_masks(mask_bhcr, (jnp.abs(key_r - last_c1) < window)[None, None])
        rows = Heads(query_bchk, key_brgk, value_brhe, heads.sink_h)
        return attention(rows, mask_bhcr, inside)

    if causal and not window and target <= UNROLLED * length:
        # Unrolled, each chunk reads only the keys up to its end.
        starts = range(0, target, length)
        ends = [min(start + length, target) for start in starts]
        seen = [min(max(end + source - target, 1), source) for end in ends]
        parts = [
            jax.checkpoint(functools.partial(attend, start, end - start, keys))()
            for start, end, keys in zip(starts, ends, seen, strict=True)
        ]
        return jnp.concatenate(parts, axis=1)

    @functools.partial(jax.checkpoint, static_argnums=1)
    def attend_at(start: int | jax.Array, count: int) -> jax.Array:
        # The number of keys visible to `count` adjacent queries.
        near = count + (window - 1) * (1 if causal else 2)
        return attend(start, count, min(source, near) if window else source)

    whole = target - target % length
    output_nbche = jax.lax.map(lambda start: attend_at(start, length), jnp.arange(0, whole, length))
    output_bthe = jax.lax.collapse(jnp.moveaxis(output_nbche, 0, 1), 1, 3)
    if whole == target:
        return output_bthe
    return jnp.concatenate([output_bthe, attend_at(whole, target - whole)], axis=1)


def _sliced(
    x_bhts: jax.Array | None, axis: int, start: int | jax.Array, count: int
) -> jax.Array | None:
    """Returns these rows or columns of a mask, unless they are broadcast."""
    if x_bhts is None or x_bhts.shape[axis] in (1, count):
        return x_bhts
    return jax.lax.dynamic_slice_in_dim(x_bhts, start, count, axis=axis)


def attend_by_head(
    query_bthk: jax.Array,
    key_bgsk: jax.Array,
    value_bgse: jax.Array,
    mask_bhts: Mask = None,
    scores: Scores = Scores(),
    beside_sink: Beside = lambda scores_bhts, mask_bhts: (scores_bhts, mask_bhts),
) -> jax.Array:
    """`scaled_dot_product_attention`, `b t h e`, of few queries over keys stored by head.

    Heads that share a key head are rows of one product, and each head reads contiguous memory. The
    mask includes causality and window. beside_sink: appends the scores of the sinks, if any.
    """
    (batch, target, heads, size), (_, groups, source, _) = query_bthk.shape, key_bgsk.shape
    query_bgrk = query_bthk.swapaxes(1, 2).reshape(batch, groups, heads // groups * target, size)
    dtype = upcast_dtype(query_bthk.dtype)
    scores_bgrs = jnp.einsum("bgrk,bgsk->bgrs", query_bgrk, key_bgsk, preferred_element_type=dtype)
    scores_bgrs *= size**-0.5 if scores.scale is None else scores.scale
    if scores.cap is not None:
        scores_bgrs = soft_cap(scores_bgrs, scores.cap)
    scores_bhts = scores_bgrs.reshape(batch, heads, target, source)
    weights_bhts = softmax(*beside_sink(scores_bhts, mask_bhts))[..., :source]
    weights_bgrs = weights_bhts.astype(query_bthk.dtype).reshape(scores_bgrs.shape)
    output_bgre = jnp.einsum("bgrs,bgse->bgre", weights_bgrs, value_bgse)
    return output_bgre.reshape(batch, heads, target, value_bgse.shape[3]).swapaxes(1, 2)
