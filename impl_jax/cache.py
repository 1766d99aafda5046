"""Decoding in steps: the keys and values of what has been read are kept, so that a step computes its own tokens only."""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from reference_numpy import checks

from .fast.cache import Cache, empty, forward_step, next_tokens
from .fast.fused import fused
from .fast.request import bucket
from .mask import token_mask
from .transformer import Transformer

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]


def start_cache(
    model: Transformer,
    memory_bsd: jax.Array | None,
    source_mask_bs: jax.Array | None = None,
    batch: int | None = None,
    *,
    length: int,
) -> Cache:
    """The cache before the first token: keys and values of the memory, which no step changes, and none of the target.

    memory_bsd: None of a decoder alone, which needs batch, the number of rows. length: the positions of the target that there is room for,
    since a program has arrays of fixed shapes (`fast.cache.Cache`).
    Raises ValueError on shapes that do not fit, and where there is no decoder.
    """
    model = fused(model)
    checks.check_memory(
        model.config.cross_attention,
        model.config.model_width,
        None if memory_bsd is None else memory_bsd.shape,
        source_mask_bs,
    )
    checks.check_batch(batch, None if memory_bsd is None else len(memory_bsd))
    if source_mask_bs is not None and memory_bsd is not None:
        checks.check_token_mask(
            "source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory_bsd.shape[:2]
        )
    return empty(model, memory_bsd, source_mask_bs, batch, length)


def decode_step(
    model: Transformer, target: jax.Array, cache: Cache, target_mask_bt: jax.Array | None = None
) -> tuple[jax.Array, Cache]:
    """Logits `b t v` of the next t tokens of the target, those rows of `decode` on the whole of it, and the cache after them.

    model: best what `fused` made; any other is fused at every call. Nothing is dropped, whatever the model's mode.
    Raises ValueError on ids, masks and shapes that do not fit, and where a concrete cache has no room for the tokens.
    """
    model = fused(model)
    checks.check_same_batch(cache=cache["target_mask_bt"].shape, target=target.shape)
    if target_mask_bt is None:
        target_mask_bt = token_mask(target, model.config.padding_id)
    checks.check_token_mask(
        "target mask", target_mask_bt.shape, str(target_mask_bt.dtype), target.shape[:2]
    )
    x_btd, cache = forward_step(model, target, *next_tokens(model.config, cache, target_mask_bt))
    return model.head(x_btd), cache


def decode_in_steps(
    model: Transformer,
    target: jax.Array,
    memory_bsd: jax.Array | None,
    splits: Sequence[int],
    source_mask_bs: jax.Array | None = None,
    target_mask_bt: jax.Array | None = None,
    compiled: bool = True,
) -> jax.Array:
    """`decode`, in steps of so many tokens: the same logits `b t v`, however the target is split.

    compiled: one program for each length of a step; otherwise operation by operation.
    Raises ValueError as `decode`, and where splits are not lengths of at least 1 that add up to t.
    """
    model.config.need_decoder()
    model.embedding_of("target").check_ids(target)
    checks.check_splits(splits, target.shape)
    checks.check_length(target.shape[1], model.config.max_positions)
    if target_mask_bt is not None:
        checks.check_token_mask(
            "target mask", target_mask_bt.shape, str(target_mask_bt.dtype), target.shape[:2]
        )
    start, step = (_start_cache, _decode_step) if compiled else (start_cache, decode_step)
    model, logits = fused(model), []
    rows = len(target) if memory_bsd is None else None
    cache = start(model, memory_bsd, source_mask_bs, rows, length=bucket(target.shape[1]))
    for end, length in zip(itertools.accumulate(splits), splits, strict=True):
        part = slice(end - length, end)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = step(model, target[:, part], cache, part_mask_bt)
        logits.append(logits_btv)
    return jnp.concatenate(logits, axis=1)


_start_cache = functools.partial(jax.jit, static_argnames=("batch", "length"))(start_cache)
_decode_step = functools.partial(jax.jit, donate_argnames="cache")(decode_step)


def reorder(cache: Cache, row_b: jax.Array) -> Cache:
    """`cache'[i] = cache[row_b[i]]`, of every key, value and mask: a row takes its past with it.

    This copies the whole cache. `beam_search` does without: its beams are queries of one row (`fast.beams.Beams`).
    """
    of_rows = {name: held for name, held in cache.items() if name != "read"}
    return {**cache, **jax.tree.map(lambda held: held[row_b], of_rows)}
