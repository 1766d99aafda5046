"""Incremental decoding: a cache of keys and values, so that a step computes only its own tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

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


Attend: TypeAlias = Callable[[MultiHeadAttention, Heads, tf.Tensor | None], tf.Tensor]


class KeyValues(NamedTuple):
    """The keys and values that an attention layer has read; the keys are normalized and rotated."""

    key_bsgk: tf.Tensor
    value_bsge: tf.Tensor

    def update(self, key_btgk: tf.Tensor, value_btge: tf.Tensor) -> "KeyValues":
        """Returns the keys and values read so far, with the next ones appended."""
        key_bsgk = tf.concat([self.key_bsgk, key_btgk], axis=1)
        return KeyValues(key_bsgk, tf.concat([self.value_bsge, value_btge], axis=1))

    def last(self, window: int) -> "KeyValues":
        """Returns the keys and values of the last `window` tokens; 0: of all tokens."""
        first = max(0, self.key_bsgk.shape[1] - window) if window else 0
        return KeyValues(self.key_bsgk[:, first:], self.value_bsge[:, first:])


class Cache(NamedTuple):
    """The state of a decoder. target_mask_bt: mask of the tokens read so far. layers: for each
    layer, the KeyValues of self_attention and, if there is a memory, of cross_attention.
    """

    source_mask_bs: tf.Tensor | None
    target_mask_bt: tf.Tensor
    layers: list[dict[str, KeyValues]]


def start_cache(
    model: Transformer,
    memory_bsd: tf.Tensor | None,
    source_mask_bs: tf.Tensor | None = None,
    batch: int | None = None,
) -> Cache:
    """Returns the cache before the first token: keys and values of the memory, none of the target.

    memory_bsd: None for a decoder-only model, which needs batch, the number of rows. Raises
    ValueError if the shapes do not match, or if the model has no decoder.
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
    model: Transformer, target: tf.Tensor, cache: Cache, target_mask_bt: tf.Tensor | None = None
) -> tuple[tf.Tensor, Cache]:
    """Returns the logits `b t v` of the next t target tokens, and the updated cache.

    The logits equal the same rows of `decode` on the whole target, in evaluation mode. A layer with
    a window keeps only the keys of its window. Raises ValueError on invalid ids, masks or shapes.
    """
    target, config, past_bt = tf.convert_to_tensor(target), model.config, cache.target_mask_bt
    checks.check_same_batch(cache=past_bt.shape, target=target.shape)
    checks.check_length(past_bt.shape[1] + target.shape[1], config.max_positions)
    target_mask_bt = inputs.target_mask(config, target, target_mask_bt)
    read_bt = tf.concat([past_bt, target_mask_bt], axis=1)
    position_bt, position_pd = positions(config, read_bt, target.shape[1]), None
    if config.positions == "sinusoidal":
        position_pd = inputs.sinusoids(config, read_bt.shape[1], model.compute_dtype)
    x_btd = inputs.embed(model, "target", target, position_bt, position_pd=position_pd)
    self_mask_bhts = mask.padding_mask(read_bt)
    cross_mask_bhts = mask.padding_mask(cache.source_mask_bs)
    layers = [*cache.layers]

    def through(
        layer: DecoderLayer, x_btd: tf.Tensor, rotation: Rotation | None, index: int
    ) -> tf.Tensor:
        length = layers[index]["self_attention"].key_bsgk.shape[1] + target.shape[1]
        masks = self_mask_bhts[..., -length:], cross_mask_bhts
        x_btd, after = decoder_layer_step(layer, x_btd, layers[index], *masks, rotation)
        kept = after["self_attention"].last(layer.self_attention.scores.window)
        layers[index] = after | {"self_attention": kept}
        return x_btd

    logits_btv = model.head(model.decoder.walk(x_btd, through, position_bt))
    return logits_btv, Cache(cache.source_mask_bs, read_bt, layers)


def decoder_layer_step(
    layer: DecoderLayer,
    x_btd: tf.Tensor,
    cache: Mapping[str, Any],
    self_mask_bhts: tf.Tensor | None = None,
    cross_mask_bhts: tf.Tensor | None = None,
    rotation: Rotation | None = None,
    attend: Attend = lambda attention, heads, mask_bhts: attention.attend(heads, mask_bhts),
) -> tuple[tf.Tensor, dict[str, Any]]:
    """Runs a decoder layer on the next target tokens; returns its output and updated cache.

    cache: self_attention, whose `update` appends the keys and values of x, and cross_attention if
    there is a memory. self_mask_bhts: covers all tokens that the self-attention reads, including
    those of x. attend: computes attention over the cached keys and values.
    """
    after = dict(cache)

    def attend_to_target(y_btd: tf.Tensor) -> tf.Tensor:
        heads = layer.self_attention.project(y_btd, y_btd, rotation)
        read = cache["self_attention"].update(heads.key_bsgk, heads.value_bsge)
        after["self_attention"], (key, value) = read, read
        heads = Heads(heads.query_bthk, key, value, heads.sink_h)
        return attend(layer.self_attention, heads, self_mask_bhts)

    def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
        heads = Heads(layer.cross_attention.queries(y_btd), *cache["cross_attention"])
        return attend(layer.cross_attention, heads, cross_mask_bhts)

    crossing = attend_to_memory if "cross_attention" in cache else None
    return layer.run(x_btd, attend_to_target, crossing), after


def decode_in_steps(
    model: Transformer,
    target: tf.Tensor,
    memory_bsd: tf.Tensor | None,
    splits: Sequence[int],
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
) -> tf.Tensor:
    """Computes `decode` in steps of the lengths `splits`: the same logits `b t v` for every split,
    unless frequencies depend on the length (ROTARY).

    Raises ValueError as `decode` does, and unless splits are lengths of at least 1 that add up to
    t.
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
    """Returns the cache whose row i is row `row_b[i]` of the given one: surviving beams keep their
    past.
    """
    return tf.nest.map_structure(lambda x: None if x is None else tf.gather(x, row_b), cache)


def positions(config: TransformerConfig, read_bt: tf.Tensor, length: int) -> tf.Tensor:
    """Returns the positions of the last `length` tokens read."""
    return token_positions(read_bt, config.position_start)[:, -length:]
