"""Decoding in steps: the keys and values of what has been read are kept, so that a step computes its own tokens only."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import tensorflow as tf

from reference_numpy import checks

from . import mask
from .fast import cache as fast
from .fast.cache import Cache
from .fast.compiled import compiled as graph
from .fast.fused import fused
from .transformer import Transformer

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]


def start_cache(
    model: Transformer,
    memory_bsd: tf.Tensor | None,
    source_mask_bs: tf.Tensor | None = None,
    batch: int | None = None,
    *,
    length: int,
) -> Cache:
    """The cache before the first token: keys and values of the memory, which no step changes, and room for those of the target.

    memory_bsd: None of a decoder alone, which needs batch, the number of rows.
    length: how many tokens of the target it can hold. source_mask_bs: boolean, True = real token of the source.
    Raises ValueError on shapes that do not fit, and where there is no decoder.
    """
    config = model.config
    config.need_decoder()
    memory_bsd = None if memory_bsd is None else tf.convert_to_tensor(memory_bsd)
    checks.check_memory(
        config.cross_attention,
        config.model_width,
        None if memory_bsd is None else memory_bsd.shape,
        source_mask_bs,
    )
    checks.check_batch(batch, None if memory_bsd is None else memory_bsd.shape[0])
    if source_mask_bs is not None and memory_bsd is not None:
        source_mask_bs = tf.convert_to_tensor(source_mask_bs)
        checks.check_token_mask(
            "source mask", source_mask_bs.shape, source_mask_bs.dtype.name, memory_bsd.shape[:2]
        )
    rows: Any = batch if memory_bsd is None else memory_bsd.shape[0]
    return fast.empty(model, memory_bsd, source_mask_bs, rows, length)


def decode_step(
    model: Transformer, target: tf.Tensor, cache: Cache, target_mask_bt: tf.Tensor | None = None
) -> tuple[tf.Tensor, Cache]:
    """Logits `b t v` of the next t tokens of the target, and the cache after them: those rows of `decode` on the whole target.

    target and target_mask_bt: of these tokens only; t may differ from step to step. Evaluation alone: nothing is dropped.
    Raises ValueError on ids, masks and shapes that do not fit and, where the values are known, on more tokens than the cache can hold.
    """
    target = tf.convert_to_tensor(target)
    checks.check_same_batch(cache=cache["target_mask_bt"].shape, target=target.shape)
    target_mask_bt = (
        mask.token_mask(target, model.config.padding_id)
        if target_mask_bt is None
        else tf.convert_to_tensor(target_mask_bt)
    )
    checks.check_token_mask(
        "target mask", target_mask_bt.shape, target_mask_bt.dtype.name, target.shape[:2]
    )
    read, length = cache["read"], cache["position_td"].shape[0]
    if not tf.is_symbolic_tensor(read):
        checks.check_length(int(read) + target.shape[1], model.config.max_positions)
        if int(read) + target.shape[1] > length:
            raise ValueError(f"the cache holds {length} tokens; got {int(read) + target.shape[1]}")
    return fast.forward_step(model, target, cache, target_mask_bt)


def decode_in_steps(
    model: Transformer,
    target: tf.Tensor,
    memory_bsd: tf.Tensor | None,
    splits: Sequence[int],
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
    compiled: bool = False,
) -> tf.Tensor:
    """`decode`, in steps of so many tokens: the same logits `b t v`, however the target is split, by the model that the searches run.

    compiled: a step is one graph compiled by XLA for each length in splits. Raises ValueError as `decode`, and where splits are not lengths
    of at least 1 that add up to t.
    """
    target = tf.convert_to_tensor(target)
    model = fused(model)
    model.token_embedding("target").check_ids(target)
    checks.check_splits(splits, target.shape)
    checks.check_length(target.shape[1], model.config.max_positions)
    if target_mask_bt is not None:
        target_mask_bt = tf.convert_to_tensor(target_mask_bt)
        checks.check_token_mask(
            "target mask", target_mask_bt.shape, target_mask_bt.dtype.name, target.shape[:2]
        )
    batch = target.shape[0] if memory_bsd is None else None
    cache, logits = start_cache(model, memory_bsd, source_mask_bs, batch, length=sum(splits)), []
    step = partial(decode_step, model)
    run = graph(step) if compiled else step
    for end, length in zip(accumulate(splits), splits, strict=True):
        part = slice(end - length, end)
        logits_btv, cache = run(
            target[:, part], cache, None if target_mask_bt is None else target_mask_bt[:, part]
        )
        logits.append(logits_btv)
    return tf.concat(logits, axis=1)


def reorder(cache: Cache, row_b: tf.Tensor) -> Cache:
    """The cache whose row i is what row `row_b[i]` was: beams that live on take their past with them.

    Beams share their keys: each continues one of its own source by taking over which keys are its past.
    """
    names = (
        ("target_mask_bt",)
        if fast.beams(cache) > 1
        else ("source_mask_bs", "target_mask_bt", "layers")
    )
    held = {name: cache[name] for name in names if name in cache}
    moved = tf.nest.map_structure(lambda x: None if x is None else tf.gather(x, row_b), held)
    return {**cache, **moved}
