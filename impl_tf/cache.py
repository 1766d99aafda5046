"""Decoding in steps: the keys and values of the tokens that were read are kept, so that a step
computes its own tokens only.

A cache has one length, and a step writes into it in place. source_mask_bs (not in a decoder-only
model), target_mask_bt and layers (of each the keys `b g k s` and values `b g s e` of self_attention
and cross_attention, as they are multiplied) are the reference's. Beside them: read, the number of
tokens that each row has read; start, how many of these only fill up its length, which positions
that are numbered from the row's first token do not count; position_td, the vectors of positions,
without a column where none are added to the embedding.

Keys are held as they were rotated when they were read. A layer whose window is shorter than the
cache has room for the keys and values of its window: a token takes the place of the one that the
window leaves behind.

The rows n of the target are the w beams of the first row b, then those of the next. The beams of a
row share their keys: those of all beams' first tokens, of the second, ...; target_mask_bt,
`n (t w)`, says which of them are the real tokens of the beam's own past.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from . import inputs, mask
from .attention import MultiHeadAttention, scaled_dot_product_attention
from .framework import keras
from .layers import DecoderLayer
from .rotary import Rotation
from .transformer import Transformer
from .values import Heads

__all__ = ["KeyValues", "decode_in_steps", "decode_step", "reorder", "start_cache"]

Cache: TypeAlias = Mapping[str, Any]


def start_cache(
    model: Transformer,
    memory_bsd: tf.Tensor | None,
    source_mask_bs: tf.Tensor | None = None,
    batch: int | None = None,
    *,
    length: int,
) -> Cache:
    """The cache before the first token: keys and values of the memory, and room for the target's.

    memory_bsd: None in a decoder-only model, which needs batch, the number of rows. length: the
    tokens of the target that the cache can hold. source_mask_bs: boolean, True = real token.
    Raises ValueError on shapes that do not fit, and without a decoder.
    """
    config, dtype = model.config, model.compute_dtype
    config.need_decoder()
    memory_bsd = None if memory_bsd is None else tf.convert_to_tensor(memory_bsd)
    memory_shape = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, memory_shape, source_mask_bs)
    checks.check_batch(batch, None if memory_shape is None else memory_shape[0])
    if source_mask_bs is not None and memory_bsd is not None:
        source_mask_bs = tf.convert_to_tensor(source_mask_bs)
        checks.check_token_mask(
            "source mask", source_mask_bs.shape, source_mask_bs.dtype.name, memory_bsd.shape[:2]
        )
    rows: Any = batch if memory_shape is None else memory_shape[0]
    layers = []
    for index, layer in enumerate(model.decoder.layers):
        room = min(length, config.layer_kind(index).window or length)
        key_bgks = tf.zeros([rows, config.key_value_heads, config.key_size, room], dtype)
        value_bgse = tf.zeros([rows, config.key_value_heads, room, config.value_size], dtype)
        layers.append({"self_attention": (key_bgks, value_bgse)})
        if memory_bsd is not None:
            keys_and_values = layer.cross_attention.keys_and_values(memory_bsd)
            layers[-1]["cross_attention"] = _by_head(*keys_and_values)
    return {
        **({} if memory_bsd is None else {"source_mask_bs": source_mask_bs}),
        "target_mask_bt": tf.zeros([rows, length], tf.bool),
        "layers": layers,
        "read": tf.constant(0),
        "start": tf.constant(0),
        "position_td": _position_vectors(model, length),
    }


def decode_step(
    model: Transformer, target: tf.Tensor, cache: Cache, target_mask_bt: tf.Tensor | None = None
) -> tuple[tf.Tensor, Cache]:
    """Logits `b t v` of the next t tokens of the target, those rows of `decode`, and the cache
    after.

    target and target_mask_bt: of these tokens only; t may differ from step to step. In evaluation.
    Raises ValueError on ids, masks and shapes that do not fit and, if the values are known, on more
    tokens than the cache can hold.
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
    return forward_step(model, target, cache, target_mask_bt)


def forward_step(
    model: Transformer,
    target: tf.Tensor,
    cache: Cache,
    target_mask_bt: tf.Tensor,
    ahead: int = 0,
    known: tf.Tensor | None = None,
) -> tuple[tf.Tensor, Cache]:
    """`decode_step` on arguments that are checked.

    ahead: how many tokens that are read later count for the length of the text, by which keys may
    rotate. known: how many of these tokens there are, by default all; the others only fill up their
    axis, and the cache does not count them.
    """
    source_mask_bs, width = cache.get("source_mask_bs"), beam_count(cache)
    (rows, count), vocabulary = target.shape[:2], model.config.target_vocabulary
    end = cache["read"] + (count if known is None else known)
    batch, queries = rows // width, count * width
    mask_bt = _with_tokens(cache, target_mask_bt, width)
    step = _Step(cache["read"], count, end, width, cache["position_td"].shape[0])
    token_s = tf.range(mask_bt.shape[1]) // width  # the token that each key is of
    position_bt = _positions(model.config, mask_bt, token_s, cache, count)
    x_btd = inputs.embed(model, "target", target, position_bt, position_pd=cache["position_td"])
    x_btd = tf.reshape(_by_token(x_btd, width), [batch, queries, x_btd.shape[2]])
    longest = None
    if model.config.positions == "rotary":
        read_too = {**cache, "target_mask_bt": mask_bt, "read": end}
        longest = text_length(model.config, read_too) + ahead
        position_bt = tf.reshape(_by_token(position_bt, width), [batch, queries])
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    self_masks: dict[int, tf.Tensor] = {}
    layers: list[Cache] = []

    def through(
        layer: DecoderLayer, x_btd: tf.Tensor, rotation: Rotation | None, index: int
    ) -> tf.Tensor:
        cached = cache["layers"][index]
        held = KeyValues(step, *cached["self_attention"])
        if held.room not in self_masks:
            self_masks[held.room] = step.self_mask(mask_bt, held.room)

        def attend(y_btd: tf.Tensor) -> tf.Tensor:
            query_bthk, *new = layer.self_attention.project(y_btd, y_btd, rotation)
            heads = Heads(query_bthk, *held.update(*new))
            return attend_by_mask(layer.self_attention, heads, self_masks[held.room])

        def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
            query_bthk = layer.cross_attention.queries(y_btd)
            heads = Heads(query_bthk, *_by_position(*cached["cross_attention"]))
            return layer.cross_attention.attend(heads, cross_mask_bhts)

        x_btd = layer.run(x_btd, attend, attend_to_memory if "cross_attention" in cached else None)
        layers.append({**cached, "self_attention": held.pair})
        return x_btd

    x_btd = model.decoder.walk(x_btd, through, position_bt, longest)
    logits_btwv = tf.reshape(model.head(x_btd), [batch, count, width, vocabulary])
    logits_btv = tf.reshape(tf.transpose(logits_btwv, [0, 2, 1, 3]), [rows, count, vocabulary])
    return logits_btv, {**cache, "target_mask_bt": mask_bt, "layers": layers, "read": end}


@dataclass(frozen=True)
class _Step:
    """The next tokens: how many were read before, how many they are, how many the cache counts
    then, in each of how many beams that share keys, and how many it can hold."""

    read: tf.Tensor
    count: int
    end: tf.Tensor
    width: int
    length: int

    def self_mask(self, mask_bt: tf.Tensor, room: int) -> tf.Tensor:
        """Which keys the next tokens may attend to, of a layer that holds so many tokens: `b 1 t
        s`. mask_bt: of the target, the next tokens among them."""
        read, count, width = self.read, self.count, self.width
        token_s = tf.range(mask_bt.shape[1]) // width
        if room < self.length:
            token_k = _held(read + 1, room)
            if count > 1:
                token_k = tf.concat([_held(read, room), read + tf.range(count)], axis=0)
            place_s = _places(token_k, width)
            token_s = place_s // width
            mask_bt = tf.gather(mask_bt, tf.maximum(place_s, 0), axis=1) & (token_s >= 0)
        not_after_ts = token_s <= read + tf.range(count)[:, tf.newaxis]
        if room < self.length:
            not_after_ts &= token_s > read - room + tf.range(count)[:, tf.newaxis]
        return tf.reshape(
            _by_token(mask_bt[:, tf.newaxis] & not_after_ts, width),
            [mask_bt.shape[0] // width, 1, count * width, mask_bt.shape[1]],
        )


class KeyValues:
    """The keys and values that the self-attention of a layer holds, and room for more."""

    def __init__(self, step: _Step, key_bgks: tf.Tensor, value_bgse: tf.Tensor) -> None:
        self.step, self.pair = step, (key_bgks, value_bgse)
        self.room = key_bgks.shape[3] // step.width

    def update(self, key_bsgk: tf.Tensor, value_bsge: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Stores keys and values of the next tokens; returns all that these tokens attend to."""
        new = zip(self.pair, _by_head(key_bsgk, value_bsge), (3, 2), strict=True)
        seen, self.pair = zip(*(self._extended(*each) for each in new), strict=True)
        return _by_position(*seen)

    def _extended(self, held: tf.Tensor, new: tf.Tensor, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The keys or values that the next tokens attend to, and those that are held then."""
        step, room = self.step, self.room
        if room == step.length or step.count == 1:
            place = [0] * 4
            place[axis] = step.read % room * step.width
            # In place within a graph if nothing else reads the old ones.
            held = keras.ops.slice_update(held, tf.stack(place), new)
            return held, held
        both, place_r = tf.concat([held, new], axis=axis), tf.range(room)
        token_r = _held(step.end, room)
        kept_r = tf.where(token_r < step.read, place_r, room + token_r - step.read)
        return both, tf.gather(both, _places(kept_r, step.width), axis=axis)


def _held(read: tf.Tensor, room: int) -> tf.Tensor:
    """The token in each place of a layer that holds the last tokens; negative: none."""
    return read - 1 - (read - 1 - tf.range(room)) % room


def _places(token_k: tf.Tensor, width: int) -> tf.Tensor:
    """Where the keys of these tokens lie among those of all tokens and beams."""
    return tf.reshape(token_k[:, tf.newaxis] * width + tf.range(width), [-1])


def attend_by_mask(attention: MultiHeadAttention, heads: Heads, mask_bhts: tf.Tensor) -> tf.Tensor:
    """`attention.attend` of keys whose order is not the text's: the mask alone says what a query
    may attend to."""
    own = Scores(attention.scores.scale, attention.scores.cap)
    output_bthe = scaled_dot_product_attention(heads, mask_bhts, own)
    return attention.output_projection(output_bthe)


def decode_in_steps(
    model: Transformer,
    target: tf.Tensor,
    memory_bsd: tf.Tensor | None,
    splits: Sequence[int],
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
    step: Callable[..., tuple[tf.Tensor, Cache]] = decode_step,
) -> tf.Tensor:
    """`decode` in steps of the lengths `splits`: the same logits `b t v`, however t is split.

    step: `decode_step`, which a caller may compile. Raises ValueError as `decode`, and if splits
    are not lengths of at least 1 that add up to t.
    """
    target = tf.convert_to_tensor(target)
    model.input_layers("target").embedding.check_ids(target)
    checks.check_splits(splits, target.shape)
    checks.check_length(target.shape[1], model.config.max_positions)
    if target_mask_bt is not None:
        target_mask_bt = tf.convert_to_tensor(target_mask_bt)
        checks.check_token_mask(
            "target mask", target_mask_bt.shape, target_mask_bt.dtype.name, target.shape[:2]
        )
    batch = target.shape[0] if memory_bsd is None else None
    cache, logits = start_cache(model, memory_bsd, source_mask_bs, batch, length=sum(splits)), []
    for end, length in zip(accumulate(splits), splits, strict=True):
        part = slice(end - length, end)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = step(model, target[:, part], cache, part_mask_bt)
        logits.append(logits_btv)
    return tf.concat(logits, axis=1)


def reorder(cache: Cache, row_b: tf.Tensor) -> Cache:
    """The cache whose row i is row `row_b[i]`: beams that live on take their past with them.

    Several beams share one set of keys, so that only target_mask_bt, which says which keys are a
    beam's past, is moved; with one beam the keys and the source mask are moved too.
    """
    names = ["target_mask_bt"]
    if beam_count(cache) == 1:
        names += ["source_mask_bs", "layers"]
    held = {name: cache[name] for name in names if name in cache}
    moved = tf.nest.map_structure(lambda x: None if x is None else tf.gather(x, row_b), held)
    return {**cache, **moved}


def text_length(config: TransformerConfig, cache: Cache) -> tf.Tensor:
    """The largest position of what has been read, and 1."""
    mask_bt = cache["target_mask_bt"]
    token_s = tf.range(mask_bt.shape[1]) // beam_count(cache)
    last = {**cache, "read": cache["read"] - 1}
    return tf.reduce_max(_positions(config, mask_bt, token_s, last, 1)) + 1


def beam_count(cache: Cache) -> int:
    """The number of rows of the target that share the keys of a row."""
    return cache["target_mask_bt"].shape[1] // cache["position_td"].shape[0]


def branch(cache: Cache, count: int) -> Cache:
    """The cache of count beams for every row; they have all read what the row has."""

    def apart(x: tf.Tensor, axis: int) -> tf.Tensor:
        """The positions of that axis, each followed by room for those of the other beams."""
        wider = tf.stack([x, *[tf.zeros_like(x)] * (count - 1)], axis=axis + 1)
        return tf.reshape(wider, [*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]])

    layers = []
    for layer in cache["layers"]:
        key_bgks, value_bgse = layer["self_attention"]
        layers.append({**layer, "self_attention": (apart(key_bgks, 3), apart(value_bgse, 2))})
    mask_bt = apart(tf.repeat(cache["target_mask_bt"], count, axis=0), 1)
    return {**cache, "target_mask_bt": mask_bt, "layers": layers}


def _position_vectors(model: Transformer, length: int) -> tf.Tensor:
    """The vectors of the first positions; a learned table that is shorter serves fewer."""
    if (embedding := model.input_layers("target").position_embedding) is not None:
        position_t = tf.minimum(tf.range(length), model.config.max_positions - 1)
        return embedding(position_t[tf.newaxis])[0]
    if model.config.positions != "sinusoidal":
        return tf.zeros([length, 0], model.compute_dtype)
    return inputs.sinusoids(model.config, length, model.compute_dtype)


def _by_head(key_bsgk: tf.Tensor, value_bsge: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """`b g k s` and `b g s e`, as attention multiplies them: stored by position, a step compiled by
    XLA takes eight times as long.
    """
    return tf.transpose(key_bsgk, [0, 2, 3, 1]), tf.transpose(value_bsge, [0, 2, 1, 3])


def _by_position(key_bgks: tf.Tensor, value_bgse: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """`b s g k` and `b s g e`: attention transposes them back, and XLA cancels the two."""
    return tf.transpose(key_bgks, [0, 3, 1, 2]), tf.transpose(value_bgse, [0, 2, 1, 3])


def _with_tokens(cache: Cache, target_mask_bt: tf.Tensor, width: int) -> tf.Tensor:
    """The mask of the keys, those of the next tokens among them."""
    rows, count = target_mask_bt.shape
    own_b1w = tf.tile(tf.eye(width, dtype=tf.bool), [rows // width, 1])[:, tf.newaxis]
    new_bt = tf.reshape(target_mask_bt[..., tf.newaxis] & own_b1w, [rows, count * width])
    place = tf.stack([0, cache["read"] * width])
    return keras.ops.slice_update(cache["target_mask_bt"], place, new_bt)


def _positions(
    config: TransformerConfig, mask_bs: tf.Tensor, token_s: tf.Tensor, cache: Cache, count: int
) -> tf.Tensor:
    """The positions of the next count tokens, from the first real one, or from the row's first."""
    if config.position_start == "row":
        first_b1 = tf.fill([mask_bs.shape[0], 1], cache["start"])
    else:
        place_bs = tf.where(mask_bs, token_s, mask_bs.shape[1])
        first_b1 = tf.reduce_min(place_bs, axis=1, keepdims=True)
    return tf.maximum(cache["read"] + tf.range(count) - first_b1, 0)


def _by_token(x_btd: tf.Tensor, width: int) -> tf.Tensor:
    """`b t w d`, with any axes for d: the first tokens of all beams of a row, then the second ones,
    like their keys."""
    x_bwtd = tf.reshape(x_btd, [x_btd.shape[0] // width, width, *x_btd.shape[1:]])
    return tf.transpose(x_bwtd, [0, 2, 1, *range(3, len(x_bwtd.shape))])
