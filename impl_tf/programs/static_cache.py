"""A cache of a fixed length, which steps fill in place: one graph serves every step of a search.

A layer whose window is shorter than the cache has room for the keys and values of its window: a
token takes the place of the one that the window leaves behind.

The rows n of the target are the w beams of the first row b, then those of the next. The beams of a
row share their keys: those of all beams' first tokens, of the second, ...; target_mask_bt,
`n (t w)`, says which of them are the real tokens of the beam's own past.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from .. import cache as growing
from .. import inputs
from ..attention import MultiHeadAttention, scaled_dot_product_attention
from ..cache import Next, decode_step
from ..framework import keras
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

    def step(
        self, key_btgk: tf.Tensor, value_btge: tf.Tensor, ahead: Next, window: int
    ) -> "tuple[StaticKeyValues, StaticKeyValues, tf.Tensor]":
        """All that the next tokens attend to, what is held after them, and the mask for the first.
        The cache's length bounds the window."""
        new, room = StaticKeyValues.of(key_btgk, value_btge), self.key_bgks.shape[3]
        key_bgks, held_key = ahead.place.written(self.key_bgks, new.key_bgks, 3)
        value_bgse, held_value = ahead.place.written(self.value_bgse, new.value_bgse, 2)
        held = StaticKeyValues(held_key, held_value)
        return StaticKeyValues(key_bgks, value_bgse), held, ahead.masks[room]

    def attend(
        self, attention: MultiHeadAttention, query_bthk: tf.Tensor, mask_bhts: tf.Tensor | None
    ) -> tf.Tensor:
        """The output of an attention of these queries: it transposes the keys and values back, and
        XLA cancels the two."""
        key_bsgk = tf.transpose(self.key_bgks, [0, 3, 1, 2])
        heads = Heads(query_bthk, key_bsgk, tf.transpose(self.value_bgse, [0, 2, 1, 3]))
        return attend_by_mask(attention, heads, mask_bhts)


class StaticCache(NamedTuple):
    """source_mask_bs: without a column in a decoder-only model. read: the number of tokens that
    each row has read. start: how many of these only fill up its length, which positions that are
    numbered from the row's first token do not count. position_td: the vectors of positions, without
    a column where none are added to the embedding."""

    source_mask_bs: tf.Tensor | None
    target_mask_bt: tf.Tensor
    layers: list[dict[str, StaticKeyValues]]
    read: tf.Tensor
    start: tf.Tensor
    position_td: tf.Tensor

    def check(self, config: TransformerConfig, count: int) -> None:
        """Raises ValueError on more tokens than the cache can hold, if their number is known."""
        if tf.is_symbolic_tensor(self.read):
            return
        needed, length = int(self.read) + count, self.position_td.shape[0]
        checks.check_length(needed, config.max_positions)
        if needed > length:
            raise ValueError(f"the cache holds {length} tokens; got {needed}")

    def next_tokens(
        self, model: Transformer, mask_bt: tf.Tensor, later: int = 0, known: tf.Tensor | None = None
    ) -> "tuple[StaticCache, Next]":
        """The cache with the mask of a target's next tokens, and what these are given, `b (t w)`.

        later: how many tokens that are read later count for the length of the text. known: how many
        of these tokens there are, by default all; the cache does not count the others, which only
        fill up.
        """
        config, width, (rows, count) = model.config, self.beams, mask_bt.shape
        own_b1w = tf.tile(tf.eye(width, dtype=tf.bool), [rows // width, 1])[:, tf.newaxis]
        new_bt = tf.reshape(mask_bt[..., tf.newaxis] & own_b1w, [rows, count * width])
        place = tf.stack([0, self.read * width])
        all_bt = keras.ops.slice_update(self.target_mask_bt, place, new_bt)
        end = self.read + (count if known is None else known)
        after = self._replace(target_mask_bt=all_bt, layers=[*self.layers], read=end)
        place = _Place(self.read, count, end, width, self.position_td.shape[0])
        rooms = {layer["self_attention"].key_bgks.shape[3] for layer in self.layers}
        masks = {room: place.self_mask(all_bt, room // width) for room in rooms}
        position_bt = _by_token(_positions(config, self, all_bt, count), width)
        length = _text_length(config, after) + later if config.positions == "rotary" else None
        return after, Next(position_bt, None, self.position_td, masks, place, length)

    @property
    def beams(self) -> int:
        """The number of rows of the target that share the keys of a row."""
        return self.target_mask_bt.shape[1] // self.position_td.shape[0]


def start_cache(
    model: Transformer,
    memory_bsd: tf.Tensor | None,
    source_mask_bs: tf.Tensor | None = None,
    batch: int | None = None,
    *,
    length: int,
    start: tf.Tensor | int = 0,
) -> StaticCache:
    """`cache.start_cache`, with room for so many tokens of the target. start: see `StaticCache`."""
    config, dtype = model.config, model.compute_dtype
    empty = growing.start_cache(model, memory_bsd, source_mask_bs, batch)
    rows, heads = empty.target_mask_bt.shape[0], config.key_value_heads
    layers: list[dict[str, StaticKeyValues]] = []
    for index, held in enumerate(empty.layers):
        room = min(length, config.layer_kind(index).window or length)
        key_bgks = tf.zeros([rows, heads, config.key_size, room], dtype)
        value_bgse = tf.zeros([rows, heads, room, config.value_size], dtype)
        memory = {name: StaticKeyValues.of(*pair) for name, pair in held.items()}
        layers.append(memory | {"self_attention": StaticKeyValues(key_bgks, value_bgse)})
    return StaticCache(
        tf.zeros([rows, 0], tf.bool) if memory_bsd is None else empty.source_mask_bs,
        tf.zeros([rows, length], tf.bool),
        layers,
        read=tf.constant(0),
        start=tf.convert_to_tensor(start),
        position_td=_position_vectors(model, length),
    )


def forward_step(
    model: Transformer,
    target: tf.Tensor,
    cache: StaticCache,
    target_mask_bt: tf.Tensor,
    later: int = 0,
    known: tf.Tensor | None = None,
) -> tuple[tf.Tensor, StaticCache]:
    """`decode_step` on arguments that are checked, also of several beams. later, known: see
    `StaticCache.next_tokens`."""
    (rows, count), width = target.shape, cache.beams
    cache, ahead = cache.next_tokens(model, target_mask_bt, later, known)
    logits_bsv, cache = growing.read(model, _by_token(target, width), cache, ahead)
    vocabulary = logits_bsv.shape[2]
    logits_btwv = tf.reshape(logits_bsv, [rows // width, count, width, vocabulary])
    logits_btv = tf.reshape(tf.transpose(logits_btwv, [0, 2, 1, 3]), [rows, count, vocabulary])
    return logits_btv, cache


@dataclass(frozen=True)
class _Place:
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
    if cache.beams > 1:
        return cache._replace(target_mask_bt=tf.gather(cache.target_mask_bt, row_b))
    held: Any = cache[:3]
    moved = growing.reorder(growing.Cache(*held), row_b)
    return cache._replace(**moved._asdict())


def branch(cache: StaticCache, count: int) -> StaticCache:
    """The cache of count beams for every row; they have all read what the row has."""

    def apart(x: tf.Tensor, axis: int) -> tf.Tensor:
        """The positions of that axis, each followed by room for those of the other beams."""
        wider = tf.stack([x, *[tf.zeros_like(x)] * (count - 1)], axis=axis + 1)
        return tf.reshape(wider, [*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]])

    layers: list[dict[str, StaticKeyValues]] = []
    for layer in cache.layers:
        key_bgks, value_bgse = layer["self_attention"]
        own = StaticKeyValues(apart(key_bgks, 3), apart(value_bgse, 2))
        layers.append({**layer, "self_attention": own})
    mask_bt = apart(tf.repeat(cache.target_mask_bt, count, axis=0), 1)
    return cache._replace(target_mask_bt=mask_bt, layers=layers)


def read_anew(
    model: Transformer,
    cache: StaticCache,
    token_bn: tf.Tensor,
    mask_bn: tf.Tensor,
    answered: tf.Tensor,
) -> StaticCache:
    """The cache after the target so far, which stands at the end of its axis: where the next token
    of an answer (answered: it has a token) is the first one beyond the original length of longrope,
    all keys are rotated by the frequencies of long texts."""
    read, length = cache.read, _text_length(model.config, cache)
    beyond = tf.reduce_any([length == original for original in model.config.rotary_switches])

    def again() -> StaticCache:
        target_bt, mask_bt = (
            tf.roll(x_bn, read - x_bn.shape[1], axis=1) for x_bn in (token_bn, mask_bn)
        )
        nothing_bt = tf.zeros_like(cache.target_mask_bt)
        empty = cache._replace(read=tf.constant(0), target_mask_bt=nothing_bt)
        return forward_step(model, target_bt, empty, mask_bt, later=1, known=read)[1]

    return tf.cond(beyond & answered, again, lambda: cache)


def _text_length(config: TransformerConfig, cache: StaticCache) -> tf.Tensor:
    """The largest position of what has been read, and 1."""
    last = cache._replace(read=cache.read - 1)
    return tf.reduce_max(_positions(config, last, cache.target_mask_bt, 1)) + 1


def _position_vectors(model: Transformer, length: int) -> tf.Tensor:
    """The vectors of the first positions; a learned table that is shorter serves fewer."""
    embedding = inputs.InputLayers.of(model, "target").position_embedding
    if embedding is not None:
        position_t = tf.minimum(tf.range(length), model.config.max_positions - 1)
        return embedding(position_t[tf.newaxis])[0]
    if model.config.positions != "sinusoidal":
        return tf.zeros([length, 0], model.compute_dtype)
    return inputs.sinusoids(model.config, length, model.compute_dtype)


def _positions(
    config: TransformerConfig, cache: StaticCache, mask_bs: tf.Tensor, count: int
) -> tf.Tensor:
    """The positions of the next count tokens, from the first real one, or from the row's first."""
    if config.position_start == "row":
        first_b1 = tf.fill([mask_bs.shape[0], 1], cache.start)
    else:
        token_s = tf.range(mask_bs.shape[1]) // cache.beams
        place_bs = tf.where(mask_bs, token_s, mask_bs.shape[1])
        first_b1 = tf.reduce_min(place_bs, axis=1, keepdims=True)
    return tf.maximum(cache.read + tf.range(count) - first_b1, 0)


def _by_token(x_btd: tf.Tensor, width: int) -> tf.Tensor:
    """`b (t w) d`, with any axes for d: the first tokens of all beams of a row, then the second
    ones, like their keys."""
    rows, count, *rest = x_btd.shape
    x_bwtd = tf.reshape(x_btd, [rows // width, width, count, *rest])
    x_btwd = tf.transpose(x_bwtd, [0, 2, 1, *range(3, len(x_bwtd.shape))])
    return tf.reshape(x_btwd, [rows // width, count * width, *rest])
