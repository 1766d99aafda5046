"""A cache of a fixed length, which steps fill in place: one graph serves every step of a search.

A layer whose window is shorter than the cache has room for the keys and values of its window: a
token takes the place of the one that the window leaves behind.

The rows n of the target are the w beams of the first row b, then those of the next. The beams of a
row share their keys: those of all beams' first tokens, of the second, ...; target_mask_bt,
`n (t w)`, says which of them are the real tokens of the beam's own past.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NotRequired, TypedDict

import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from .. import cache as growing
from .. import inputs, mask
from ..attention import MultiHeadAttention, scaled_dot_product_attention
from ..framework import keras
from ..layers import DecoderLayer
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Heads

__all__ = [
    "StaticCache",
    "attend_by_mask",
    "branch",
    "decode_step",
    "forward_step",
    "read_anew",
    "reorder",
    "start_cache",
]


class StaticKeyValues(NamedTuple):
    """Keys, rotated as they were read, and values, as attention multiplies them: stored by
    position, a step compiled by XLA takes eight times as long."""

    key_bgks: tf.Tensor
    value_bgse: tf.Tensor

    @classmethod
    def of(cls, key_bsgk: tf.Tensor, value_bsge: tf.Tensor) -> "StaticKeyValues":
        """Keys and values that lie by position."""
        return cls(tf.transpose(key_bsgk, [0, 2, 3, 1]), tf.transpose(value_bsge, [0, 2, 1, 3]))

    def update(
        self, key_btgk: tf.Tensor, value_btge: tf.Tensor, step: "_Step"
    ) -> "tuple[StaticKeyValues, StaticKeyValues]":
        """All that the next tokens attend to, and what is held after them."""
        new = StaticKeyValues.of(key_btgk, value_btge)
        key_bgks, held_key = step.written(self.key_bgks, new.key_bgks, 3)
        value_bgse, held_value = step.written(self.value_bgse, new.value_bgse, 2)
        return StaticKeyValues(key_bgks, value_bgse), StaticKeyValues(held_key, held_value)

    def heads(self, query_bthk: tf.Tensor) -> Heads:
        """With these queries: attention transposes them back, and XLA cancels the two."""
        key_bsgk = tf.transpose(self.key_bgks, [0, 3, 1, 2])
        return Heads(query_bthk, key_bsgk, tf.transpose(self.value_bgse, [0, 2, 1, 3]))


class StaticCache(TypedDict):
    """source_mask_bs: not in a decoder-only model. read: the number of tokens that each row has
    read. start: how many of these only fill up its length, which positions that are numbered from
    the row's first token do not count. position_td: the vectors of positions, without a column
    where none are added to the embedding."""

    source_mask_bs: NotRequired[tf.Tensor | None]
    target_mask_bt: tf.Tensor
    layers: list[Mapping[str, StaticKeyValues]]
    read: tf.Tensor
    start: tf.Tensor
    position_td: tf.Tensor


def start_cache(
    model: Transformer,
    memory_bsd: tf.Tensor | None,
    source_mask_bs: tf.Tensor | None = None,
    batch: int | None = None,
    *,
    length: int,
) -> StaticCache:
    """`cache.start_cache`, with room for so many tokens of the target."""
    config, dtype = model.config, model.compute_dtype
    empty = growing.start_cache(model, memory_bsd, source_mask_bs, batch)
    rows, heads = empty["target_mask_bt"].shape[0], config.key_value_heads
    layers: list[Mapping[str, StaticKeyValues]] = []
    for index, held in enumerate(empty["layers"]):
        room = min(length, config.layer_kind(index).window or length)
        key_bgks = tf.zeros([rows, heads, config.key_size, room], dtype)
        value_bgse = tf.zeros([rows, heads, room, config.value_size], dtype)
        own = {"self_attention": StaticKeyValues(key_bgks, value_bgse)}
        if "cross_attention" in held:
            key_bsgk, value_bsge = held["cross_attention"]
            own["cross_attention"] = StaticKeyValues.of(key_bsgk, value_bsge)
        layers.append(own)
    started: StaticCache = {
        "target_mask_bt": tf.zeros([rows, length], tf.bool),
        "layers": layers,
        "read": tf.constant(0),
        "start": tf.constant(0),
        "position_td": _position_vectors(model, length),
    }
    if memory_bsd is not None:
        started["source_mask_bs"] = empty["source_mask_bs"]
    return started


def decode_step(
    model: Transformer,
    target: tf.Tensor,
    cache: StaticCache,
    target_mask_bt: tf.Tensor | None = None,
) -> tuple[tf.Tensor, StaticCache]:
    """`cache.decode_step`. Raises ValueError also, if the values are known, on more tokens than the
    cache can hold."""
    target = tf.convert_to_tensor(target)
    checks.check_same_batch(cache=cache["target_mask_bt"].shape, target=target.shape)
    target_mask_bt = inputs.target_mask(model.config, target, target_mask_bt)
    read, length = cache["read"], cache["position_td"].shape[0]
    if not tf.is_symbolic_tensor(read):
        checks.check_length(int(read) + target.shape[1], model.config.max_positions)
        if int(read) + target.shape[1] > length:
            raise ValueError(f"the cache holds {length} tokens; got {int(read) + target.shape[1]}")
    return forward_step(model, target, cache, target_mask_bt)


def forward_step(
    model: Transformer,
    target: tf.Tensor,
    cache: StaticCache,
    target_mask_bt: tf.Tensor,
    ahead: int = 0,
    known: tf.Tensor | None = None,
) -> tuple[tf.Tensor, StaticCache]:
    """`decode_step` on arguments that are checked.

    ahead: how many tokens that are read later count for the length of the text, by which keys may
    rotate. known: how many of these tokens there are, by default all; the others only fill up their
    axis, and the cache does not count them.
    """
    config, width, vocabulary = model.config, _beams(cache), model.config.target_vocabulary
    rows, count = target.shape[:2]
    mask_bt = _with_tokens(cache, target_mask_bt, width)
    end = cache["read"] + (count if known is None else known)
    after: StaticCache = {**cache, "target_mask_bt": mask_bt, "read": end, "layers": []}
    step = _Step(cache["read"], count, end, width, cache["position_td"].shape[0])
    position_bt = _positions(config, cache, mask_bt, count)
    x_btd = inputs.embed(model, "target", target, position_bt, position_pd=cache["position_td"])
    x_btd, longest = _by_token(x_btd, width), None
    if config.positions == "rotary":
        position_bt = _by_token(position_bt, width)
        longest = _text_length(config, after) + ahead
    source_mask_bs = cache.get("source_mask_bs")
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    self_masks: dict[int, tf.Tensor] = {}

    def through(
        layer: DecoderLayer, x_btd: tf.Tensor, rotation: Rotation | None, index: int
    ) -> tf.Tensor:
        cached = cache["layers"][index]
        room = cached["self_attention"].key_bgks.shape[3] // width
        if room not in self_masks:
            self_masks[room] = step.self_mask(mask_bt, room)
        held = dict(cached)

        def attend(y_btd: tf.Tensor) -> tf.Tensor:
            query_bthk, key_btgk, value_btge = layer.self_attention.project(y_btd, y_btd, rotation)
            read, held["self_attention"] = cached["self_attention"].update(
                key_btgk, value_btge, step
            )
            return attend_by_mask(layer.self_attention, read.heads(query_bthk), self_masks[room])

        def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
            heads = cached["cross_attention"].heads(layer.cross_attention.queries(y_btd))
            return layer.cross_attention.attend(heads, cross_mask_bhts)

        after["layers"].append(held)
        return layer.run(x_btd, attend, attend_to_memory if "cross_attention" in cached else None)

    x_btd = model.decoder.walk(x_btd, through, position_bt, longest)
    logits_btwv = tf.reshape(model.head(x_btd), [rows // width, count, width, vocabulary])
    logits_btv = tf.reshape(tf.transpose(logits_btwv, [0, 2, 1, 3]), [rows, count, vocabulary])
    return logits_btv, after


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
        query_t1 = read + tf.range(count)[:, tf.newaxis]
        near_ts = token_s <= query_t1
        if room < self.length:
            near_ts &= token_s > query_t1 - room
        return _by_token(mask_bt[:, tf.newaxis] & near_ts, width)[:, tf.newaxis]

    def written(self, held: tf.Tensor, new: tf.Tensor, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The keys or values that the next tokens attend to, and those that are held then."""
        room = held.shape[axis] // self.width
        if room == self.length or self.count == 1:
            place = [0] * 4
            place[axis] = self.read % room * self.width
            # In place within a graph if nothing else reads the old ones.
            held = keras.ops.slice_update(held, tf.stack(place), new)
            return held, held
        both, token_r = tf.concat([held, new], axis=axis), _held(self.end, room)
        kept_r = tf.where(token_r < self.read, tf.range(room), room + token_r - self.read)
        return both, tf.gather(both, _places(kept_r, self.width), axis=axis)


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
    return attention.output_projection(scaled_dot_product_attention(heads, mask_bhts, own))


def reorder(cache: StaticCache, row_b: tf.Tensor) -> StaticCache:
    """`cache.reorder`. Several beams share one set of keys, so that only target_mask_bt, which says
    which keys are a beam's past, is moved; with one beam all is moved."""
    names = ["target_mask_bt"]
    if _beams(cache) == 1:
        names += ["source_mask_bs", "layers"]
    held = {name: x for name, x in cache.items() if name in names}
    moved = tf.nest.map_structure(lambda x: None if x is None else tf.gather(x, row_b), held)
    return {**cache, **moved}


def branch(cache: StaticCache, count: int) -> StaticCache:
    """The cache of count beams for every row; they have all read what the row has."""

    def apart(x: tf.Tensor, axis: int) -> tf.Tensor:
        """The positions of that axis, each followed by room for those of the other beams."""
        wider = tf.stack([x, *[tf.zeros_like(x)] * (count - 1)], axis=axis + 1)
        return tf.reshape(wider, [*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]])

    layers: list[Mapping[str, StaticKeyValues]] = []
    for layer in cache["layers"]:
        key_bgks, value_bgse = layer["self_attention"]
        own = StaticKeyValues(apart(key_bgks, 3), apart(value_bgse, 2))
        layers.append({**layer, "self_attention": own})
    mask_bt = apart(tf.repeat(cache["target_mask_bt"], count, axis=0), 1)
    return {**cache, "target_mask_bt": mask_bt, "layers": layers}


def read_anew(
    model: Transformer,
    cache: StaticCache,
    token_bn: tf.Tensor,
    mask_bn: tf.Tensor,
    answered: tf.Tensor,
) -> StaticCache:
    """The cache after the target so far, which stands at the end of its axis: where the next token
    of an answer is the first one beyond the original length of longrope, all keys are rotated by
    the frequencies of long texts.

    answered: whether an answer has a token.
    """
    read, length = cache["read"], _text_length(model.config, cache)
    beyond = tf.reduce_any([length == original for original in model.config.rotary_switches])

    def again() -> StaticCache:
        target_bt, mask_bt = (
            tf.roll(x_bn, read - x_bn.shape[1], axis=1) for x_bn in (token_bn, mask_bn)
        )
        nothing_bt = tf.zeros_like(cache["target_mask_bt"])
        empty: StaticCache = {**cache, "read": tf.constant(0), "target_mask_bt": nothing_bt}
        return forward_step(model, target_bt, empty, mask_bt, ahead=1, known=read)[1]

    return tf.cond(beyond & answered, again, lambda: cache)


def _text_length(config: TransformerConfig, cache: StaticCache) -> tf.Tensor:
    """The largest position of what has been read, and 1."""
    last: StaticCache = {**cache, "read": cache["read"] - 1}
    return tf.reduce_max(_positions(config, last, cache["target_mask_bt"], 1)) + 1


def _beams(cache: StaticCache) -> int:
    """The number of rows of the target that share the keys of a row."""
    return cache["target_mask_bt"].shape[1] // cache["position_td"].shape[0]


def _position_vectors(model: Transformer, length: int) -> tf.Tensor:
    """The vectors of the first positions; a learned table that is shorter serves fewer."""
    embedding = inputs.InputLayers.of(model, "target").position_embedding
    if embedding is not None:
        position_t = tf.minimum(tf.range(length), model.config.max_positions - 1)
        return embedding(position_t[tf.newaxis])[0]
    if model.config.positions != "sinusoidal":
        return tf.zeros([length, 0], model.compute_dtype)
    return inputs.sinusoids(model.config, length, model.compute_dtype)


def _with_tokens(cache: StaticCache, target_mask_bt: tf.Tensor, width: int) -> tf.Tensor:
    """The mask of the keys, those of the next tokens among them."""
    rows, count = target_mask_bt.shape
    own_b1w = tf.tile(tf.eye(width, dtype=tf.bool), [rows // width, 1])[:, tf.newaxis]
    new_bt = tf.reshape(target_mask_bt[..., tf.newaxis] & own_b1w, [rows, count * width])
    place = tf.stack([0, cache["read"] * width])
    return keras.ops.slice_update(cache["target_mask_bt"], place, new_bt)


def _positions(
    config: TransformerConfig, cache: StaticCache, mask_bs: tf.Tensor, count: int
) -> tf.Tensor:
    """The positions of the next count tokens, from the first real one, or from the row's first."""
    if config.position_start == "row":
        first_b1 = tf.fill([mask_bs.shape[0], 1], cache["start"])
    else:
        token_s = tf.range(mask_bs.shape[1]) // _beams(cache)
        place_bs = tf.where(mask_bs, token_s, mask_bs.shape[1])
        first_b1 = tf.reduce_min(place_bs, axis=1, keepdims=True)
    return tf.maximum(cache["read"] + tf.range(count) - first_b1, 0)


def _by_token(x_btd: tf.Tensor, width: int) -> tf.Tensor:
    """`b (t w) d`, with any axes for d: the first tokens of all beams of a row, then the second
    ones, like their keys."""
    rows, count, *rest = x_btd.shape
    x_bwtd = tf.reshape(x_btd, [rows // width, width, count, *rest])
    x_btwd = tf.transpose(x_bwtd, [0, 2, 1, *range(3, len(x_bwtd.shape))])
    return tf.reshape(x_btwd, [rows // width, count * width, *rest])
