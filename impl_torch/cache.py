"""Decoding in steps: the keys and values of what has been read are kept, so that a step computes its own tokens only."""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from reference_numpy import checks

from . import positional_encoding, precision
from .embedding import check_ids
from .fast.cache import check_steps, forward_step
from .fast.fused import pack
from .transformer import Transformer

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

# source_mask_bs, and layers, the keys and values of each, of both attentions: as in the reference. target_mask_bwtw: target_mask_bt for w
# copies of a row: the token at position t of which copy is in the past of a copy. read: how many tokens have been read. leading_b: padding
# before the first real token. encoding_pd: the sinusoidal encoding of every position; None where positions are learned.
Cache = Mapping[str, Any]
Step = Callable[..., tuple[Tensor, Cache]]


def start_cache(
    model: Transformer,
    memory_bsd: Tensor | None,
    source_mask_bs: Tensor | None = None,
    batch: int | None = None,
    *,
    length: int,
    copies: int = 1,
) -> Cache:
    """The cache before the first token: keys and values of the memory, and room for `length` tokens, which steps write into in place.

    memory_bsd: None of a decoder alone, which needs batch, the number of rows, without their copies. copies: so many neighbouring rows of
    the target share a row of the memory, and can change places without a copy of keys and values.
    Raises ValueError on a model in training, too, and where a part that steps do not call as a whole has a hook or is of a kind of its own.
    """
    model.config.need_decoder()
    check_steps(model)
    if model.training:
        raise ValueError("decoding in steps needs a model in evaluation; got one in training")
    config = model.config
    checks.check_memory(
        config.cross_attention,
        config.model_width,
        None if memory_bsd is None else memory_bsd.shape,
        source_mask_bs,
    )
    checks.check_batch(batch, None if memory_bsd is None else len(memory_bsd))
    if source_mask_bs is not None and memory_bsd is not None:
        checks.check_token_mask(
            "source mask",
            source_mask_bs.shape,
            precision.dtype_name(source_mask_bs.dtype),
            memory_bsd.shape[:2],
        )
    kept: Any = next(model.parameters()) if memory_bsd is None else memory_bsd
    rows: Any = batch if memory_bsd is None else len(memory_bsd)
    layers = []
    for layer in model.decoder.layers:
        room = (
            kept.new_empty(rows, length, copies, config.key_value_heads, size)
            for size in (config.key_size, config.value_size)
        )
        layers.append({"self_attention": tuple(room)})
        if memory_bsd is not None:
            layers[-1]["cross_attention"] = layer.cross_attention.keys_and_values(memory_bsd)
    pack(model, rows * copies)
    encoding_pd = None
    if config.positions == "sinusoidal":
        place_p = torch.arange(length, device=kept.device)
        encoding_pd = positional_encoding.positional_encoding(
            place_p, config.model_width, kept.dtype
        )
    return {
        "source_mask_bs": source_mask_bs,
        "target_mask_bwtw": torch.empty(
            rows, copies, length, copies, dtype=torch.bool, device=kept.device
        ),
        "layers": layers,
        "read": 0,
        "leading_b": torch.zeros(rows * copies, dtype=torch.int64, device=kept.device),
        "encoding_pd": encoding_pd,
    }


def decode_step(
    model: Transformer,
    target: Tensor,
    cache: Cache,
    target_mask_bt: Tensor | None = None,
    step: Step | None = None,
) -> tuple[Tensor, Cache]:
    """Logits `b t v` of the next t tokens, those rows of `decode` on the whole target, and the cache after them.

    The cache that is given and the one that is returned share their tensors. step: a graph of `forward_step`, where there is one.
    """
    length = cache["target_mask_bwtw"].shape[2]
    checks.check_same_batch(cache=cache["leading_b"].shape, target=target.shape)
    checks.check_length(cache["read"] + target.shape[1], model.config.max_positions)
    check_ids((target, model.config.target_vocabulary))
    if target_mask_bt is not None:
        checks.check_token_mask(
            "target mask",
            target_mask_bt.shape,
            precision.dtype_name(target_mask_bt.dtype),
            target.shape[:2],
        )
    if cache["read"] + target.shape[1] > length:
        raise ValueError(
            f"the cache has room for {length} tokens; got {cache['read'] + target.shape[1]}"
        )
    return (step or forward_step)(model, target, cache, target_mask_bt)


def decode_in_steps(
    model: Transformer,
    target: Tensor,
    memory_bsd: Tensor | None,
    splits: Sequence[int],
    source_mask_bs: Tensor | None = None,
    target_mask_bt: Tensor | None = None,
    step: Step | None = None,
) -> Tensor:
    """`decode`, in steps of so many tokens: the same logits `b t v`, however the target is split. step: as of `decode_step`."""
    check_ids((target, model.config.target_vocabulary))
    checks.check_splits(splits, target.shape)
    if target_mask_bt is not None:
        checks.check_token_mask(
            "target mask",
            target_mask_bt.shape,
            precision.dtype_name(target_mask_bt.dtype),
            target.shape[:2],
        )
    batch = len(target) if memory_bsd is None else None
    cache, logits = (
        start_cache(model, memory_bsd, source_mask_bs, batch, length=target.shape[1]),
        [],
    )
    masks = repeat(None) if target_mask_bt is None else target_mask_bt.split([*splits], dim=1)
    for part, part_mask_bt in zip(target.split([*splits], dim=1), masks, strict=False):
        logits_btv, cache = decode_step(model, part, cache, part_mask_bt, step)
        logits.append(logits_btv)
    return torch.cat(logits, dim=1)


def reorder(cache: Cache, row_b: Tensor) -> Cache:
    """The cache whose row i is what row `row_b[i]` was.

    Copies of a row change places among themselves alone, which leaves their keys and values where they are.
    """
    batch, copies = cache["target_mask_bwtw"].shape[:2]
    source_mask_bs, layers = cache["source_mask_bs"], cache["layers"]
    if copies == 1:
        source_mask_bs = None if source_mask_bs is None else source_mask_bs[row_b]
        layers = [
            {name: tuple(kept[row_b] for kept in pair) for name, pair in layer.items()}
            for layer in layers
        ]
    return {
        **cache,
        "source_mask_bs": source_mask_bs,
        "target_mask_bwtw": cache["target_mask_bwtw"]
        .flatten(0, 1)[row_b]
        .unflatten(0, (batch, copies)),
        "layers": layers,
        "leading_b": cache["leading_b"][row_b],
    }
