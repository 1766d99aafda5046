"""Incremental decoding: a cache of keys and values, so that a step computes only its own tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import attention, checks, inputs, layers, mask, positional_encoding, stacks, transformer
from .arrays import Array, Mask, Tree
from .config import TransformerConfig as Config
from .values import Attending, Heads, Text

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]


class KeyValues(NamedTuple):
    """The keys and values that an attention layer has read; the keys are normalized and rotated."""

    key_bsgk: Array
    value_bsge: Array

    def update(self, key_btgk: Array, value_btge: Array) -> "KeyValues":
        """Returns the keys and values read so far, with the next ones appended."""
        key_bsgk = np.concatenate([self.key_bsgk, key_btgk], axis=1)
        return KeyValues(key_bsgk, np.concatenate([self.value_bsge, value_btge], axis=1))

    def last(self, window: int) -> "KeyValues":
        """Returns the keys and values of the last `window` tokens; 0: of all tokens."""
        first = max(0, self.key_bsgk.shape[1] - window) if window else 0
        return KeyValues(self.key_bsgk[:, first:], self.value_bsge[:, first:])


class Cache(NamedTuple):
    """The state of a decoder. layers: for each layer, the KeyValues of its attentions by name."""

    source_mask_bs: Mask
    target_mask_bt: Array
    layers: Sequence[Mapping[str, KeyValues]]


def start_cache(
    parameters: Tree,
    config: Config,
    memory_bsd: Array | None,
    source_mask_bs: Mask = None,
    batch: int | None = None,
) -> Cache:
    """Returns the cache before the first token: keys and values of the memory, none of the target.

    memory_bsd: None for a decoder-only model, which needs batch, the number of rows.
    source_mask_bs: boolean, True = real token of the source. Raises ValueError if the shapes do not
    match, or if the model has no decoder.
    """
    config.need_decoder()
    memory = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, memory, source_mask_bs)
    checks.check_batch(batch, None if memory is None else memory[0])
    if source_mask_bs is not None and memory is not None:
        kind = str(source_mask_bs.dtype)
        checks.check_token_mask("source mask", source_mask_bs.shape, kind, memory[:2])
    dtype = parameters[inputs.table(config, "target")]["table"].dtype
    rows: Any = batch if memory_bsd is None else len(memory_bsd)
    key_bsgk = np.zeros((rows, 0, config.key_value_heads, config.key_size), dtype)
    value_bsge = np.zeros((rows, 0, config.key_value_heads, config.value_size), dtype)
    caches = []
    for index in range(config.decoder_layers):
        caches.append({"self_attention": KeyValues(key_bsgk, value_bsge)})
        if memory_bsd is not None:
            layer = parameters["decoder"]["layers"][str(index)]["cross_attention"]
            pair = attention.keys_and_values(layer, config, memory_bsd)
            caches[-1]["cross_attention"] = KeyValues(*pair)
    return Cache(source_mask_bs, np.zeros((rows, 0), bool), caches)


def decode_step(
    parameters: Tree, config: Config, target: Array, cache: Cache, target_mask_bt: Mask = None
) -> tuple[Array, Cache]:
    """Returns the logits `b t v` of the next t target tokens, and the updated cache.

    The logits equal the same rows of `decode` on the whole target: positions and causality count
    from its first token (CAUSAL). Keys rotate when they are read; where frequencies depend on the
    length (ROTARY), they use the length read so far. A layer with a window keeps only the keys of
    its window. target and target_mask_bt: as in `decode`, for these tokens only; t may differ
    between steps. Dropout is off. Raises ValueError on invalid ids, masks or shapes.
    """
    source_mask_bs, past_bt, _ = cache
    checks.check_same_batch(cache=past_bt.shape, target=target.shape)
    checks.check_length(past_bt.shape[1] + target.shape[1], config.max_positions)
    mask_bt = inputs.real(config, Text(target, target_mask_bt))
    checks.check_token_mask("target mask", mask_bt.shape, str(mask_bt.dtype), target.shape[:2])
    read_bt = np.concatenate([past_bt, mask_bt], axis=1)
    position_bt = positions(config, read_bt, target.shape[1])
    x_btd = inputs.embed(parameters, config, "target", target, position_bt)
    self_mask_bhts = mask.padding_mask(read_bt)
    memory_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    caches = list(cache.layers)

    def layer(index: int, own: Tree, y_btd: Array) -> Array:
        told = stacks.attending(config, index, y_btd, self_mask_bhts, position_bt, causal=True)
        step = decoder_layer_step(own, config, y_btd, caches[index], told, memory_mask_bhts)
        y_btd, caches[index] = step
        return y_btd

    x_btd = stacks.walk(parameters["decoder"], config, x_btd, layer)
    logits_btv = transformer.logits(parameters, config, x_btd)
    return logits_btv, Cache(source_mask_bs, read_bt, caches)


def decoder_layer_step(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    cache: Mapping[str, KeyValues],
    attending: Attending,
    cross_mask_bhts: Mask = None,
) -> tuple[Array, dict[str, KeyValues]]:
    """Runs `layers.decoder_layer` on the next target tokens; returns its output and updated cache.

    cache: self_attention, to which the keys and values of x are appended, and cross_attention if
    there is a memory. attending: as in `layers.decoder_layer`; its mask covers all tokens read,
    including those of x.
    """
    after, (mask_bhts, scores, rotation) = dict(cache), attending

    def attend(y_btd: Array) -> Array:
        own = parameters["self_attention"]
        heads = attention.project(own, config, y_btd, y_btd, rotation)
        read = cache["self_attention"].update(heads.key_bsgk, heads.value_bsge)
        after["self_attention"] = read.last(scores.window)
        seen_bhts = None if mask_bhts is None else mask_bhts[..., -read.key_bsgk.shape[1] :]
        heads = Heads(heads.query_bthk, *read, heads.sink_h)
        return attention.attend(own, config, heads, seen_bhts, scores)

    def attend_to_memory(y_btd: Array) -> Array:
        own, memory = parameters["cross_attention"], cache["cross_attention"]
        heads = Heads(attention.queries(own, config, y_btd), *memory)
        return attention.attend(own, config, heads, cross_mask_bhts, config.scores(None))

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
    """Computes `decode` in steps of the lengths `splits`: the same logits `b t v` for every split,
    unless frequencies depend on the length (ROTARY).

    Raises ValueError as `decode` does, and unless splits are lengths of at least 1 that add up to
    t.
    """
    checks.check_tokens("token", target.shape, str(target.dtype), config.target_vocabulary)
    checks.check_splits(splits, target.shape)
    if target_mask_bt is not None:
        kind = str(target_mask_bt.dtype)
        checks.check_token_mask("target mask", target_mask_bt.shape, kind, target.shape[:2])
    batch = len(target) if memory_bsd is None else None
    cache, logits = start_cache(parameters, config, memory_bsd, source_mask_bs, batch), []
    for end, length in zip(np.cumsum(splits), splits, strict=True):
        part = slice(end - length, end)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = decode_step(parameters, config, target[:, part], cache, part_mask_bt)
        logits.append(logits_btv)
    return np.concatenate(logits, axis=1)


def reorder(cache: Cache, row_b: Array) -> Cache:
    """Returns the cache whose row i is row `row_b[i]` of the given one: surviving beams keep their
    past.
    """
    source_mask_bs, target_mask_bt, layers = cache
    moved = [
        {name: KeyValues(key[row_b], value[row_b]) for name, (key, value) in layer.items()}
        for layer in layers
    ]
    real_bs = None if source_mask_bs is None else source_mask_bs[row_b]
    return Cache(real_bs, target_mask_bt[row_b], moved)


def positions(config: Config, read_bt: Array, length: int) -> Array:
    """Returns the positions of the last `length` tokens read."""
    return positional_encoding.token_positions(read_bt, config.position_start)[:, -length:]


def length(config: Config, read_bt: Array) -> int:
    """Returns the largest position read so far plus 1; 0 before the first token."""
    if not read_bt.shape[1]:
        return 0
    return int(positions(config, read_bt, 1).max(initial=0)) + 1
