"""Decoding in steps: a cache of keys and values, so that a step computes only its own tokens.

The cache grows with every step. Searches and compiled steps have one of a fixed length instead:
`programs.static_cache`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import inputs, mask
from .attention import MultiHeadAttention
from .layers import DecoderLayer
from .positional_encoding import token_positions
from .rotary import Rotation
from .transformer import Transformer
from .values import Heads, Text

__all__ = ["KeyValues", "decode_in_steps", "decode_step", "reorder", "start_cache"]


class Next(NamedTuple):
    """The next tokens of a target: their positions, and which tokens they may attend to.

    position_pd: the encoding of every position, if there is a table. masks, place: only for a
    static cache. length: of the text, by default the largest position and 1.
    """

    position_bt: tf.Tensor
    mask_bhts: Any = None
    position_pd: tf.Tensor | None = None
    masks: Any = None
    place: Any = None
    length: tf.Tensor | None = None


class KeyValues(NamedTuple):
    """The keys and values that an attention has read; the keys are normalised and rotated."""

    key_bsgk: tf.Tensor
    value_bsge: tf.Tensor

    def update(self, key_btgk: tf.Tensor, value_btge: tf.Tensor) -> "KeyValues":
        """The keys and values read so far, with the next ones appended."""
        key_bsgk = tf.concat([self.key_bsgk, key_btgk], axis=1)
        return KeyValues(key_bsgk, tf.concat([self.value_bsge, value_btge], axis=1))

    def last(self, window: int) -> "KeyValues":
        """Those of the last tokens, as many as the window has; 0: of all."""
        first = max(0, self.key_bsgk.shape[1] - window) if window else 0
        return KeyValues(self.key_bsgk[:, first:], self.value_bsge[:, first:])

    def step(
        self, key_btgk: tf.Tensor, value_btge: tf.Tensor, ahead: Next, window: int
    ) -> "tuple[KeyValues, KeyValues, tf.Tensor | None]":
        """What the next tokens attend to, what is held after them, and the mask of the former."""
        read = self.update(key_btgk, value_btge)
        return read, read.last(window), ahead.mask_bhts[..., -read.key_bsgk.shape[1] :]

    def attend(
        self, attention: MultiHeadAttention, query_bthk: tf.Tensor, mask_bhts: tf.Tensor | None
    ) -> tf.Tensor:
        """The output of an attention of these queries to the keys and values."""
        return attention.attend(Heads(query_bthk, *self), mask_bhts)


class Cache(NamedTuple):
    """target_mask_bt: of the tokens read. layers: of each the KeyValues of self_attention and, if
    there is a memory, cross_attention."""

    source_mask_bs: tf.Tensor | None
    target_mask_bt: tf.Tensor
    layers: list[dict[str, KeyValues]]

    def check(self, config: TransformerConfig, count: int) -> None:
        """Raises ValueError if there are fewer positions than the next tokens need."""
        checks.check_length(self.target_mask_bt.shape[1] + count, config.max_positions)

    def next_tokens(self, model: Transformer, mask_bt: tf.Tensor) -> tuple["Cache", Next]:
        """The cache with the mask of a target's next tokens, and what these are given."""
        config, position_pd = model.config, None
        read_bt = tf.concat([self.target_mask_bt, mask_bt], axis=1)
        if config.positions == "sinusoidal":
            position_pd = inputs.sinusoids(config, read_bt.shape[1], model.compute_dtype)
        position_bt = positions(config, read_bt, mask_bt.shape[1])
        ahead = Next(position_bt, mask.padding_mask(read_bt), position_pd)
        return Cache(self.source_mask_bs, read_bt, [*self.layers]), ahead


def start_cache(
    model: Transformer,
    memory_bsd: tf.Tensor | None,
    source_mask_bs: tf.Tensor | None = None,
    batch: int | None = None,
) -> Cache:
    """The cache before the first token: keys and values of the memory, and none of the target.

    batch: the number of rows of a decoder-only model, which has no memory. Raises ValueError on
    shapes that do not fit, and without a decoder.
    """
    config, dtype = model.config, model.compute_dtype
    config.need_decoder()
    memory_bsd = None if memory_bsd is None else tf.convert_to_tensor(memory_bsd)
    memory = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, memory, source_mask_bs)
    checks.check_batch(batch, None if memory is None else memory[0])
    if source_mask_bs is not None and memory is not None:
        source_mask_bs = tf.convert_to_tensor(source_mask_bs)
        mask.check("source mask", source_mask_bs, memory[:2])
    rows, heads = batch if memory is None else memory[0], config.key_value_heads
    nothing = KeyValues(
        tf.zeros([rows, 0, heads, config.key_size], dtype),
        tf.zeros([rows, 0, heads, config.value_size], dtype),
    )
    layers: list[dict[str, KeyValues]] = []
    for layer in model.decoder.layers:
        caches = {"self_attention": nothing}
        if memory_bsd is not None:
            key_bsgk, value_bsge = layer.cross_attention.keys_and_values(memory_bsd)
            caches["cross_attention"] = KeyValues(key_bsgk, value_bsge)
        layers.append(caches)
    return Cache(source_mask_bs, tf.zeros([rows, 0], tf.bool), layers)


def decode_step(
    model: Transformer, target: tf.Tensor, cache: Any, target_mask_bt: tf.Tensor | None = None
) -> tuple[tf.Tensor, Any]:
    """Logits `b t v` of the next t tokens of the target, those rows of `decode`, and the cache
    after.

    cache: a `Cache`, in which a layer with a window keeps no more keys than its window, or a
    `StaticCache`. In evaluation. Raises ValueError on ids, masks and shapes that do not fit, and on
    more tokens than the cache can hold, if that is known.
    """
    target = tf.convert_to_tensor(target)
    checks.check_same_batch(cache=cache.target_mask_bt.shape, target=target.shape)
    cache.check(model.config, target.shape[1])
    target_mask_bt = inputs.target_mask(model.config, target, target_mask_bt)
    cache, ahead = cache.next_tokens(model, target_mask_bt)
    return read(model, target, cache, ahead)


def read(model: Transformer, target: tf.Tensor, cache: Any, ahead: Next) -> tuple[tf.Tensor, Any]:
    """Logits `b t v` of the next tokens, and the cache, whose layers have their keys and values
    then."""
    x_btd = inputs.embed(model, "target", target, ahead.position_bt, position_pd=ahead.position_pd)
    cross_mask_bhts, layers = mask.padding_mask(cache.source_mask_bs), cache.layers

    def through(
        layer: DecoderLayer, x_btd: tf.Tensor, rotation: Rotation | None, index: int
    ) -> tf.Tensor:
        x_btd, layers[index] = decoder_layer_step(
            layer, x_btd, layers[index], ahead, cross_mask_bhts, rotation
        )
        return x_btd

    x_btd = model.decoder.walk(x_btd, through, ahead.position_bt, ahead.length)
    return model.head(x_btd), cache


def decoder_layer_step(
    layer: DecoderLayer,
    x_btd: tf.Tensor,
    cache: Mapping[str, Any],
    ahead: Next,
    cross_mask_bhts: tf.Tensor | None = None,
    rotation: Rotation | None = None,
) -> tuple[tf.Tensor, Mapping[str, Any]]:
    """The layer on the next tokens of a target, and its cache after them."""
    after = dict(cache)

    def attend(y_btd: tf.Tensor) -> tf.Tensor:
        attention = layer.self_attention
        query_bthk, key_btgk, value_btge = attention.project(y_btd, y_btd, rotation)
        read, after["self_attention"], mask_bhts = cache["self_attention"].step(
            key_btgk, value_btge, ahead, attention.scores.window
        )
        return read.attend(attention, query_bthk, mask_bhts)

    def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
        attention = layer.cross_attention
        return cache["cross_attention"].attend(attention, attention.queries(y_btd), cross_mask_bhts)

    crossing = attend_to_memory if "cross_attention" in cache else None
    return layer.run(x_btd, attend, crossing), after


def decode_in_steps(
    model: Transformer,
    target: tf.Tensor,
    memory_bsd: tf.Tensor | None,
    splits: Sequence[int],
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
) -> tf.Tensor:
    """`decode` in steps of the lengths `splits`: the same logits `b t v`, however t is split.

    Raises ValueError as `decode`, and if splits are not lengths of at least 1 that add up to t.
    """
    model.config.need_decoder()
    model.check_ids(None, target := tf.convert_to_tensor(target))
    checks.check_length(target.shape[1], model.config.max_positions)
    batch = target.shape[0] if memory_bsd is None else None
    cache, logits = start_cache(model, memory_bsd, source_mask_bs, batch), []
    for part in Text(target, target_mask_bt).split(splits):
        logits_btv, cache = decode_step(model, part.ids, cache, part.mask)
        logits.append(logits_btv)
    return tf.concat(logits, axis=1)


def reorder(cache: Cache, row_b: tf.Tensor) -> Cache:
    """The cache whose row i is what row `row_b[i]` was: beams that live on keep their past."""
    return tf.nest.map_structure(lambda x: None if x is None else tf.gather(x, row_b), cache)


def positions(config: TransformerConfig, read_bt: tf.Tensor, length: int) -> tf.Tensor:
    """The positions of the last tokens that have been read."""
    return token_positions(read_bt, config.position_start)[:, -length:]
