"""Decoding in steps: a cache of keys and values, so that a step computes only its own tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import (
    attention,
    checks,
    inputs,
    layers,
    mask,
    positional_encoding,
    stacks,
    transformer,
)
from .arrays import Array, Mask, Tree
from .config import TransformerConfig as Config

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

# source_mask_bs; target_mask_bt of the tokens read; layers: keys and values of both attentions
Cache = Mapping[str, Any]


def start_cache(
    parameters: Tree,
    config: Config,
    memory_bsd: Array | None,
    source_mask_bs: Mask = None,
    batch: int | None = None,
) -> Cache:
    """The cache before the first token: keys and values of the memory, and none of the target.

    memory_bsd: None for a decoder-only model, which needs batch, the number of rows.
    source_mask_bs: boolean, True = real token of the source.
    Raises ValueError on shapes that do not fit, and if there is no decoder.
    """
    config.need_decoder()
    memory = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, memory, source_mask_bs)
    checks.check_batch(batch, None if memory is None else memory[0])
    if source_mask_bs is not None and memory is not None:
        checks.check_token_mask(
            "source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory[:2]
        )
    rows: Any = batch if memory is None else memory[0]
    dtype = parameters[inputs.table(config, "target")]["table"].dtype
    sizes = config.key_size, config.value_size
    nothing = tuple(np.zeros((rows, 0, config.key_value_heads, size), dtype) for size in sizes)
    caches: list[dict[str, Any]] = []
    for index in range(config.decoder_layers):
        caches.append({"self_attention": nothing})
        if memory_bsd is not None:
            layer = parameters["decoder"]["layers"][str(index)]["cross_attention"]
            caches[-1]["cross_attention"] = attention.keys_and_values(layer, memory_bsd, config)
    read_bt = np.zeros((rows, 0), bool)
    return {"source_mask_bs": source_mask_bs, "target_mask_bt": read_bt, "layers": caches}


def decode_step(
    parameters: Tree, config: Config, target: Array, cache: Cache, target_mask_bt: Mask = None
) -> tuple[Array, Cache]:
    """Logits `b t v` for the next t tokens of the target, and the cache after them.

    They equal those rows of `decode` on what has been read: position and causality count from its
    beginning (CAUSAL). Keys rotate as they are read, where frequencies depend on the length
    (ROTARY) by those of what has been read then. A layer with a window keeps no more keys than its
    window. target and target_mask_bt: as in `decode`, for these tokens only; t may
    differ from step to step. Nothing is dropped.
    Raises ValueError on ids, masks and shapes that do not fit.
    """
    source_mask_bs, past_bt = cache["source_mask_bs"], cache["target_mask_bt"]
    checks.check_same_batch(cache=past_bt.shape, target=target.shape)
    checks.check_length(past_bt.shape[1] + target.shape[1], config.max_positions)
    if target_mask_bt is None:
        target_mask_bt = mask.token_mask(target, config.padding_id)
    checks.check_token_mask(
        "target mask", target_mask_bt.shape, str(target_mask_bt.dtype), target.shape[:2]
    )
    read_bt = np.concatenate([past_bt, target_mask_bt], axis=1)
    position_bt = _positions(config, read_bt, target.shape[1])
    x_btd = inputs.embed(parameters, config, "target", target, position_bt)
    self_mask_bhts = mask.padding_mask(read_bt)
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    caches = []
    for index, layer_cache in enumerate(cache["layers"]):
        layer = parameters["decoder"]["layers"][str(index)]
        given = layer_cache, self_mask_bhts, cross_mask_bhts, position_bt, index
        x_btd, layer_cache = decoder_layer_step(layer, config, x_btd, *given)
        caches.append(layer_cache)
    x_btd = stacks.final_norm(parameters["decoder"], config, x_btd)
    logits_btv = transformer.logits(parameters, config, x_btd)
    return logits_btv, {**cache, "target_mask_bt": read_bt, "layers": caches}


def decoder_layer_step(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    cache: Cache,
    self_mask_bhts: Mask = None,
    cross_mask_bhts: Mask = None,
    position_bt: Array | None = None,
    layer: int = 0,
) -> tuple[Array, dict[str, Any]]:
    """`layers.decoder_layer` on the next tokens of a target, and the layer's cache after them.

    cache: self_attention, keys and values of the tokens before, to which those of x are appended;
    cross_attention, keys and values of the memory, if there is one. self_mask_bhts: over all tokens
    that were read, those of x among them. position_bt, layer: as `layers.decoder_layer`.
    """
    after, window = dict(cache), config.layer_kind(layer).window

    def attend(y_btd: Array) -> Array:
        own = parameters["self_attention"]
        query_bthk, *new = attention.project(own, y_btd, config, layer, position_bt)
        pairs = zip(cache["self_attention"], new, strict=True)
        key_bsgk, value_bsge = (np.concatenate(pair, axis=1) for pair in pairs)
        unseen = max(0, key_bsgk.shape[1] - window) if window else 0
        after["self_attention"] = key_bsgk[:, unseen:], value_bsge[:, unseen:]
        mask_bhts = None if self_mask_bhts is None else self_mask_bhts[..., -key_bsgk.shape[1] :]
        given = query_bthk, key_bsgk, value_bsge, mask_bhts
        return attention.attend(own, *given, causal=True, config=config, layer=layer)

    def attend_to_memory(y_btd: Array) -> Array:
        own, (key_bsgk, value_bsge) = parameters["cross_attention"], cache["cross_attention"]
        query_bthk = attention.queries(own, y_btd, config)
        given = query_bthk, key_bsgk, value_bsge, cross_mask_bhts
        return attention.attend(own, *given, config=config, layer=None)

    crossing = attend_to_memory if "cross_attention" in cache else None
    return layers.run(parameters, config, x_btd, attend, crossing), after


def decode_in_steps(
    parameters: Tree,
    config: Config,
    target: Array,
    memory_bsd: Array | None,
    splits: Sequence[int],
    source_mask_bs: Mask = None,
    target_mask_bt: Mask = None,
) -> Array:
    """`decode`, in steps of these lengths: the same logits `b t v`, however the target is split,
    unless frequencies depend on the length (ROTARY).

    Raises ValueError as `decode`, and unless splits are lengths of at least 1 that add up to t.
    """
    checks.check_tokens("token", target.shape, str(target.dtype), config.target_vocabulary)
    checks.check_splits(splits, target.shape)
    if target_mask_bt is not None:
        checks.check_token_mask(
            "target mask", target_mask_bt.shape, str(target_mask_bt.dtype), target.shape[:2]
        )
    batch = len(target) if memory_bsd is None else None
    cache, logits = start_cache(parameters, config, memory_bsd, source_mask_bs, batch), []
    for end, length in zip(np.cumsum(splits), splits, strict=True):
        part = slice(end - length, end)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = decode_step(parameters, config, target[:, part], cache, part_mask_bt)
        logits.append(logits_btv)
    return np.concatenate(logits, axis=1)


def reorder(cache: Cache, row_b: Array) -> Cache:
    """The cache whose row i is what row `row_b[i]` was: beams that live on keep their past."""
    source_mask_bs = cache["source_mask_bs"]
    caches = [
        {name: (key[row_b], value[row_b]) for name, (key, value) in layer.items()}
        for layer in cache["layers"]
    ]
    return {
        "source_mask_bs": None if source_mask_bs is None else source_mask_bs[row_b],
        "target_mask_bt": cache["target_mask_bt"][row_b],
        "layers": caches,
    }


def _positions(config: Config, read_bt: Array, length: int) -> Array:
    """The positions of the last tokens that have been read."""
    return positional_encoding.token_positions(read_bt, config.position_start)[:, -length:]


def length(config: Config, read_bt: Array) -> int:
    """The largest position of what has been read and 1; 0 before the first token."""
    if not read_bt.shape[1]:
        return 0
    return int(_positions(config, read_bt, 1).max(initial=0)) + 1
