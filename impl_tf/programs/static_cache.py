"""A cache of fixed length that steps fill in place: one graph serves every step of a search.

A layer whose window is shorter than the cache only has room for the window: a token replaces the
one that leaves it.

The rows n of the target are the w beams of the first row b, then those of the next. Beams of a row
share their keys: those of all beams' first tokens, then of the second, and so on; target_mask_bt,
`n (t w)`, marks the real tokens of a beam's own past.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from .. import cache as growing
from .. import inputs
from ..attention import MultiHeadAttention, scaled_dot_product_attention
from ..framework import keras
from ..layers import DecoderLayer
from ..mask import padding_mask
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
    """Keys, rotated when read, and values in the order that attention multiplies them; stored by
    position, a step compiled by XLA takes eight times as long.
    """

    key_bgks: tf.Tensor
    value_bgse: tf.Tensor

    @classmethod
    def of(cls, key_bsgk: tf.Tensor, value_bsge: tf.Tensor) -> "StaticKeyValues":
        """Converts keys and values stored by position."""
        return cls(tf.transpose(key_bsgk, [0, 2, 3, 1]), tf.transpose(value_bsge, [0, 2, 1, 3]))


class StaticCache(NamedTuple):
    """Everything that steps have read, with room for more.

    source_mask_bs: without columns in a decoder-only model. read: the number of tokens that each
    row has read. start: how many of these are filler, which positions counted from the row's first
    token skip. position_td: the vectors of positions, without columns if none are added.
    """

    source_mask_bs: tf.Tensor | None
    target_mask_bt: tf.Tensor
    layers: list[dict[str, StaticKeyValues]]
    read: tf.Tensor
    start: tf.Tensor
    position_td: tf.Tensor

    @property
    def beams(self) -> int:
        """The number of target rows that share the keys of a row."""
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
    """Returns `cache.start_cache` with room for `length` tokens. start: see `StaticCache`."""
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


def decode_step(
    model: Transformer,
    target: tf.Tensor,
    cache: StaticCache,
    target_mask_bt: tf.Tensor | None = None,
) -> tuple[tf.Tensor, StaticCache]:
    """Computes `cache.decode_step`. Also raises ValueError if the cache has no room for the tokens,
    if their number is known.
    """
    target, length = tf.convert_to_tensor(target), cache.position_td.shape[0]
    checks.check_same_batch(cache=cache.target_mask_bt.shape, target=target.shape)
    if not tf.is_symbolic_tensor(cache.read):
        checks.check_length(needed := int(cache.read) + target.shape[1], model.config.max_positions)
        if needed > length:
            raise ValueError(f"the cache has room for {length} tokens; got {needed}")
    target_mask_bt = inputs.target_mask(model.config, target, target_mask_bt)
    return forward_step(model, target, cache, target_mask_bt)


def forward_step(
    model: Transformer,
    target: tf.Tensor,
    cache: StaticCache,
    target_mask_bt: tf.Tensor,
    later: int = 0,
    known: tf.Tensor | None = None,
) -> tuple[tf.Tensor, StaticCache]:
    """Computes `decode_step` of checked arguments, for one or more beams.

    later: number of tokens read later that count toward the text length. known: number of real
    tokens, default all; the cache does not count the rest, which is filler.
    """
    config, (rows, count), width = model.config, target.shape, cache.beams
    all_bt, end = _with(cache, target_mask_bt), cache.read + (count if known is None else known)
    after = cache._replace(target_mask_bt=all_bt, layers=[*cache.layers], read=end)
    position_bt = _by_token(_positions(config, cache, all_bt, count), width)
    length = _text_length(config, after) + later if config.positions == "rotary" else None
    ids_bt, cross_mask_bhts = _by_token(target, width), padding_mask(cache.source_mask_bs)
    x_btd = inputs.embed(model, "target", ids_bt, position_bt, position_pd=cache.position_td)
    rooms = {layer["self_attention"].key_bgks.shape[3] // width for layer in cache.layers}
    of_room = {room: _ring(cache, all_bt, room, count, end) for room in rooms}

    def through(
        layer: DecoderLayer, x_btd: tf.Tensor, rotation: Rotation | None, index: int
    ) -> tf.Tensor:
        own = cache.layers[index]["self_attention"]
        self_mask_bhts, start, last_s = of_room[own.key_bgks.shape[3] // width]
        place = _Place(own, start, last_s)
        held = cache.layers[index] | {"self_attention": place}
        x_btd, read = growing.decoder_layer_step(
            layer, x_btd, held, self_mask_bhts, cross_mask_bhts, rotation, _attend
        )
        after.layers[index] = read | {"self_attention": place.held(read["self_attention"])}
        return x_btd

    logits_bsv = model.head(model.decoder.walk(x_btd, through, position_bt, length))
    vocabulary = logits_bsv.shape[2]
    logits_btwv = tf.reshape(logits_bsv, [rows // width, count, width, vocabulary])
    logits_btv = tf.reshape(tf.transpose(logits_btwv, [0, 2, 1, 3]), [rows, count, vocabulary])
    return logits_btv, after


class _Place(NamedTuple):
    """Where the next tokens go in a layer's room: from `start` on.

    last_s: if many tokens enter a window at once, which of all attended tokens are kept; None: the
    tokens are written before they attend.
    """

    room: StaticKeyValues
    start: tf.Tensor
    last_s: tf.Tensor | None

    def update(self, key_btgk: tf.Tensor, value_btge: tf.Tensor) -> StaticKeyValues:
        """Returns the keys and values that the next tokens attend to, including their own."""
        (key_bgks, value_bgse), new = self.room, StaticKeyValues.of(key_btgk, value_btge)
        if self.last_s is not None:
            key_bgks = tf.concat([key_bgks, new.key_bgks], axis=3)
            return StaticKeyValues(key_bgks, tf.concat([value_bgse, new.value_bgse], axis=2))
        # In place within a graph, if nothing else reads the old tensors.
        of_key, of_value = tf.stack([0, 0, 0, self.start]), tf.stack([0, 0, self.start, 0])
        key_bgks = keras.ops.slice_update(key_bgks, of_key, new.key_bgks)
        value_bgse = keras.ops.slice_update(value_bgse, of_value, new.value_bgse)
        return StaticKeyValues(key_bgks, value_bgse)

    def held(self, read: StaticKeyValues) -> StaticKeyValues:
        """Returns the room after the next tokens, which attended to all of `read`."""
        if self.last_s is None:
            return read
        key_bgks = tf.gather(read.key_bgks, self.last_s, axis=3)
        return StaticKeyValues(key_bgks, tf.gather(read.value_bgse, self.last_s, axis=2))


def _with(cache: StaticCache, mask_bt: tf.Tensor) -> tf.Tensor:
    """Returns target_mask_bt with the mask of the next tokens, which only their own beam sees."""
    (rows, count), width = mask_bt.shape, cache.beams
    own_b1w = tf.tile(tf.eye(width, dtype=tf.bool), [rows // width, 1])[:, tf.newaxis]
    new_bt = tf.reshape(mask_bt[..., tf.newaxis] & own_b1w, [rows, count * width])
    place = tf.stack([0, cache.read * width])
    return keras.ops.slice_update(cache.target_mask_bt, place, new_bt)


def _ring(
    cache: StaticCache, mask_bt: tf.Tensor, room: int, count: int, end: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Returns the mask of all that the next tokens attend to, `b 1 t s`, in layers with room for
    this many tokens, and their `start` and `last_s`.

    mask_bt: of the target, including the next tokens. count: of the next tokens. end: number of
    tokens that the cache counts afterward.
    """
    read, width = cache.read, cache.beams
    query_t1, start, last_s = read + tf.range(count)[:, tf.newaxis], read % room * width, None
    if room == cache.position_td.shape[0]:
        near_ts = tf.range(mask_bt.shape[1]) // width <= query_t1
    else:
        token_k = _held(read + 1, room)
        if count > 1:
            token_k = tf.concat([_held(read, room), read + tf.range(count)], axis=0)
            token_r = _held(end, room)
            kept_r = tf.where(token_r < read, tf.range(room), room + token_r - read)
            last_s = _places(kept_r, width)
        place_s = _places(token_k, width)
        token_s = place_s // width
        mask_bt = tf.gather(mask_bt, tf.maximum(place_s, 0), axis=1) & (token_s >= 0)
        near_ts = (token_s <= query_t1) & (token_s > query_t1 - room)
    return _by_token(mask_bt[:, tf.newaxis] & near_ts, width)[:, tf.newaxis], start, last_s


def _held(read: tf.Tensor, room: int) -> tf.Tensor:
    """Returns the token in each place of a layer that keeps the last tokens; negative: empty."""
    return read - 1 - (read - 1 - tf.range(room)) % room


def _places(token_k: tf.Tensor, width: int) -> tf.Tensor:
    """Returns where the keys of these tokens are among those of all tokens and beams."""
    return tf.reshape(token_k[:, tf.newaxis] * width + tf.range(width), [-1])


def _attend(attention: MultiHeadAttention, heads: Heads, mask_bhts: tf.Tensor | None) -> tf.Tensor:
    """Applies `attend_by_mask` to keys and values in cache order; XLA cancels the transposes."""
    query_bthk, key_bgks, value_bgse, sink_h = heads
    key_bsgk, value_bsge = (
        tf.transpose(x, axes) for x, axes in ((key_bgks, [0, 3, 1, 2]), (value_bgse, [0, 2, 1, 3]))
    )
    by_position = Heads(query_bthk, key_bsgk, value_bsge, sink_h)
    return attend_by_mask(attention, by_position, mask_bhts)


def attend_by_mask(
    attention: MultiHeadAttention, heads: Heads, mask_bhts: tf.Tensor | None
) -> tf.Tensor:
    """Applies `attention.attend` to keys in any order: only the mask decides what a query sees."""
    own = Scores(attention.scores.scale, attention.scores.cap)
    return attention.output_projection(scaled_dot_product_attention(heads, mask_bhts, own))


def reorder(cache: StaticCache, row_b: tf.Tensor) -> StaticCache:
    """Computes `cache.reorder`. Several beams share one set of keys, so only target_mask_bt moves,
    which marks a beam's past; with one beam everything moves.
    """
    if cache.beams > 1:
        return cache._replace(target_mask_bt=tf.gather(cache.target_mask_bt, row_b))
    held: Any = cache[:3]
    moved = growing.reorder(growing.Cache(*held), row_b)
    return cache._replace(**moved._asdict())


def branch(cache: StaticCache, count: int) -> StaticCache:
    """Expands a cache to `count` beams per row, which have all read what the row has."""

    def apart(x: tf.Tensor, axis: int) -> tf.Tensor:
        """Adds, after each position of the axis, room for those of the other beams."""
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
    """Recomputes the cache of the target so far, which is right-aligned, when the next token of an
    answer is the first beyond longrope's original length: all keys then rotate by the frequencies
    of long texts. answered: the answer has a token.
    """
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
    """Returns the largest position read so far plus 1."""
    last = cache._replace(read=cache.read - 1)
    return tf.reduce_max(_positions(config, last, cache.target_mask_bt, 1)) + 1


def _position_vectors(model: Transformer, length: int) -> tf.Tensor:
    """Returns the vectors of the first positions; a shorter learned table repeats its last one."""
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
    """Returns the positions of the next count tokens, from the first real or the first token."""
    if config.position_start == "row":
        first_b1 = tf.fill([mask_bs.shape[0], 1], cache.start)
    else:
        token_s = tf.range(mask_bs.shape[1]) // cache.beams
        place_bs = tf.where(mask_bs, token_s, mask_bs.shape[1])
        first_b1 = tf.reduce_min(place_bs, axis=1, keepdims=True)
    return tf.maximum(cache.read + tf.range(count) - first_b1, 0)


def _by_token(x_btd: tf.Tensor, width: int) -> tf.Tensor:
    """Reorders to `b (t w) d`, with any axes for d: the first tokens of all beams, then the second,
    like their keys.
    """
    rows, count, *rest = x_btd.shape
    x_bwtd = tf.reshape(x_btd, [rows // width, width, count, *rest])
    x_btwd = tf.transpose(x_bwtd, [0, 2, 1, *range(3, len(x_bwtd.shape))])
    return tf.reshape(x_btwd, [rows // width, count * width, *rest])
