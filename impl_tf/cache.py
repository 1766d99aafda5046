"""Decoding in steps, on caches of one length: what is read is written into them in place."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import checks

from . import mask
from .fast.compiled import compiled as graph
from .fast.fused import fused
from .framework import keras
from .positional_encoding import positional_encoding
from .transformer import Transformer

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

# source_mask_bs; position_td, what is added to an embedding at each position; read, how many tokens each row has read; past_ntw, which keys
# are those of a row's own tokens; layers, of each the keys `b g k s` and values `b g s e` of both attentions. The rows n of the target are
# the w beams of the first row b, then those of the next; they share their keys: those of all beams' first token, of the second, ...
Cache: TypeAlias = Mapping[str, Any]


def start_cache(model: Transformer, memory_bsd: tf.Tensor, source_mask_bs: tf.Tensor | None = None, *, length: int) -> Cache:
    """As the truth; length: how many tokens it can hold."""
    config = model.config
    config.need_decoder()
    memory_bsd = tf.convert_to_tensor(memory_bsd)
    checks.check_features("memory", memory_bsd.shape, config.model_width)
    if source_mask_bs is not None:
        source_mask_bs = tf.convert_to_tensor(source_mask_bs)
        checks.check_token_mask("source mask", source_mask_bs.shape, source_mask_bs.dtype.name, memory_bsd.shape[:2])
    batch, groups, dtype = memory_bsd.shape[0], config.key_value_heads, memory_bsd.dtype
    layers = []
    for layer in model.decoder.layers:
        nothing = tf.zeros([batch, groups, config.key_size, length], dtype), tf.zeros([batch, groups, length, config.value_size], dtype)
        key_bsgk, value_bsge = layer.cross_attention.keys_and_values(memory_bsd)
        memory = tf.transpose(key_bsgk, [0, 2, 3, 1]), tf.transpose(value_bsge, [0, 2, 1, 3])
        layers.append({"self_attention": nothing, "cross_attention": memory})
    return {
        "source_mask_bs": source_mask_bs,
        "position_td": positional_encoding(tf.range(length), config.model_width, dtype),
        "read": tf.constant(0),
        "past_ntw": tf.zeros([batch, length, 1], tf.bool),
        "layers": layers,
    }


def decode_step(model: Transformer, target: tf.Tensor, cache: Cache, target_mask_bt: tf.Tensor | None = None) -> tuple[tf.Tensor, Cache]:
    """As the truth; where the values are known it raises ValueError on more tokens than the cache can hold."""
    target = tf.convert_to_tensor(target)
    checks.check_same_batch(cache=cache["past_ntw"].shape, target=target.shape)
    x_ntd = model.target_embedding(target)
    target_mask_bt = mask.token_mask(target, model.config.padding_id) if target_mask_bt is None else tf.convert_to_tensor(target_mask_bt)
    checks.check_token_mask("target mask", target_mask_bt.shape, target_mask_bt.dtype.name, target.shape[:2])
    read, source_mask_bs, (rows, count, width) = cache["read"], cache["source_mask_bs"], x_ntd.shape
    past_ntw = _with_mask(cache, target_mask_bt)
    x_ntd += tf.gather(cache["position_td"], _positions(past_ntw, read, count))
    beams = past_ntw.shape[2]
    batch, queries = rows // beams, count * beams
    x_btd = tf.reshape(_by_token(x_ntd, beams), [batch, queries, width])
    self_mask_bhts = tf.reshape(_by_token(_seen(past_ntw, read, count), beams), [batch, 1, queries, past_ntw.shape[1] * beams])
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    grown = []
    for layer, layer_cache in zip(model.decoder.layers, cache["layers"], strict=True):
        x_btd, layer_cache = layer.step(x_btd, layer_cache, read * beams, self_mask_bhts, cross_mask_bhts)
        grown.append(layer_cache)
    logits_btwv = tf.reshape(model.head(x_btd), [batch, count, beams, model.config.target_vocabulary])
    logits_ntv = tf.reshape(tf.transpose(logits_btwv, [0, 2, 1, 3]), [rows, count, model.config.target_vocabulary])
    return logits_ntv, {**cache, "read": read + count, "past_ntw": past_ntw, "layers": grown}


def decode_in_steps(
    model: Transformer,
    target: tf.Tensor,
    memory_bsd: tf.Tensor,
    splits: Sequence[int],
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
    compiled: bool = False,
) -> tf.Tensor:
    """As the truth, of the model as the searches run it. compiled: a step is one graph compiled by XLA for each length in splits."""
    target = tf.convert_to_tensor(target)
    model = fused(model)
    model.target_embedding.check_ids(target)
    checks.check_splits(splits, target.shape)
    if target_mask_bt is not None:
        target_mask_bt = tf.convert_to_tensor(target_mask_bt)
        checks.check_token_mask("target mask", target_mask_bt.shape, target_mask_bt.dtype.name, target.shape[:2])
    cache, logits, end = start_cache(model, memory_bsd, source_mask_bs, length=sum(splits)), [], 0

    def step(*arguments: Any) -> tuple[tf.Tensor, Cache]:
        return decode_step(model, *arguments)

    run = graph(step) if compiled else step
    for length in splits:
        part, end = slice(end, end + length), end + length
        logits_btv, cache = run(target[:, part], cache, None if target_mask_bt is None else target_mask_bt[:, part])
        logits.append(logits_btv)
    return tf.concat(logits, axis=1)


def reorder(cache: Cache, row_b: tf.Tensor) -> Cache:
    """As the truth. Beams share their keys: each continues one of its own source by taking over which keys are its past."""
    if cache["past_ntw"].shape[2] > 1:
        return {**cache, "past_ntw": tf.gather(cache["past_ntw"], row_b)}
    moved = {name: cache[name] for name in ("source_mask_bs", "past_ntw", "layers")}
    return {**cache, **tf.nest.map_structure(lambda x: None if x is None else tf.gather(x, row_b), moved)}


def branch(cache: Cache, beams: int) -> Cache:
    """The cache of so many beams of every row, which have all read what the row has: as the first of them."""

    def apart(x: tf.Tensor, axis: int) -> tf.Tensor:
        """The positions of that axis, each followed by room for those of the other beams."""
        shape, room = list(x.shape), [[0, 0]] * (len(x.shape) + 1)
        room = [*room[: axis + 1], [0, beams - 1], *room[axis + 2 :]]
        wider = tf.pad(tf.reshape(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]]), room)
        return tf.reshape(wider, [*shape[:axis], shape[axis] * beams, *shape[axis + 1 :]])

    layers = []
    for layer in cache["layers"]:
        key_bgks, value_bgse = layer["self_attention"]
        layers.append({**layer, "self_attention": (apart(key_bgks, 3), apart(value_bgse, 2))})
    past_ntw = tf.pad(tf.repeat(cache["past_ntw"], beams, axis=0), [[0, 0], [0, 0], [0, beams - 1]])
    return {**cache, "past_ntw": past_ntw, "layers": layers}


def _with_mask(cache: Cache, target_mask_nt: tf.Tensor) -> tf.Tensor:
    """The past of every row, when the tokens that are about to be read belong to it."""
    past_ntw, read, (rows, count) = cache["past_ntw"], cache["read"], target_mask_nt.shape
    _, length, beams = past_ntw.shape
    if not tf.is_symbolic_tensor(read) and int(read) + count > length:
        raise ValueError(f"the cache holds {length} tokens; got {int(read) + count}")
    own_n1w = tf.tile(tf.eye(beams, dtype=tf.bool), [rows // beams, 1])[:, tf.newaxis]
    return keras.ops.slice_update(past_ntw, tf.stack([0, read, 0]), target_mask_nt[..., tf.newaxis] & own_n1w)


def _positions(past_ntw: tf.Tensor, read: tf.Tensor, count: int) -> tf.Tensor:
    """The positions of so many tokens after those that had been read, counted from the first real one."""
    length = past_ntw.shape[1]
    first_n1 = tf.reduce_min(tf.where(past_ntw, tf.range(length)[:, tf.newaxis], length), axis=[1, 2])[:, tf.newaxis]
    return tf.maximum(read + tf.range(count) - first_n1, 0)


def _seen(past_nsw: tf.Tensor, read: tf.Tensor, count: int) -> tf.Tensor:
    """Which keys each token sees, `n t (s w)`: those of its row's past that do not come after it."""
    rows, length, beams = past_nsw.shape
    not_after_ts1 = (tf.range(length) <= read + tf.range(count)[:, tf.newaxis])[..., tf.newaxis]
    return tf.reshape(past_nsw[:, tf.newaxis] & not_after_ts1, [rows, count, length * beams])


def _by_token(x_ntd: tf.Tensor, beams: int) -> tf.Tensor:
    """`b t w d`: the first tokens of all beams of a row, then the second ones, as their keys are."""
    return tf.transpose(tf.reshape(x_ntd, [x_ntd.shape[0] // beams, beams, *x_ntd.shape[1:]]), [0, 2, 1, 3])
