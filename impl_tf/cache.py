"""Decoding in steps: a cache of keys and values, so that a step computes only its own tokens.

The cache grows with every step. Searches and compiled steps have one of a fixed length instead:
`programs.static_cache`.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias, TypedDict

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import inputs, mask
from .layers import DecoderLayer
from .positional_encoding import token_positions
from .rotary import Rotation
from .transformer import Transformer
from .values import Heads

__all__ = ["KeyValues", "decode_in_steps", "decode_step", "reorder", "start_cache"]


class KeyValues(NamedTuple):
    """The keys and values that an attention has read; the keys are normalised and rotated."""

    key_bsgk: tf.Tensor
    value_bsge: tf.Tensor

    def update(self, key_btgk: tf.Tensor, value_btge: tf.Tensor) -> "KeyValues":
        """The old keys and values, followed by those of the next tokens."""
        key_bsgk = tf.concat([self.key_bsgk, key_btgk], axis=1)
        return KeyValues(key_bsgk, tf.concat([self.value_bsge, value_btge], axis=1))

    def last(self, window: int) -> "KeyValues":
        """Those of the last tokens, as many as the window has; 0: of all."""
        first = max(0, self.key_bsgk.shape[1] - window) if window else 0
        return KeyValues(self.key_bsgk[:, first:], self.value_bsge[:, first:])


class Cache(TypedDict):
    """target_mask_bt: of the tokens read. layers: of each the KeyValues of self_attention and, if
    there is a memory, cross_attention."""

    source_mask_bs: tf.Tensor | None
    target_mask_bt: tf.Tensor
    layers: list[Mapping[str, KeyValues]]


Held: TypeAlias = Mapping[str, object]  # a cache of any kind
Steps: TypeAlias = tuple[Callable[..., Held], Callable[..., tuple[tf.Tensor, Held]]]


def start_cache(
    model: Transformer,
    memory_bsd: tf.Tensor | None,
    source_mask_bs: tf.Tensor | None = None,
    batch: int | None = None,
) -> Cache:
    """The cache before the first token: keys and values of the memory, and none of the target.

    memory_bsd: None in a decoder-only model, which needs batch, the number of rows. source_mask_bs:
    boolean, True = real token. Raises ValueError on shapes that do not fit, and without a decoder.
    """
    config, dtype = model.config, model.compute_dtype
    config.need_decoder()
    memory_bsd = None if memory_bsd is None else tf.convert_to_tensor(memory_bsd)
    memory = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, memory, source_mask_bs)
    checks.check_batch(batch, None if memory is None else memory[0])
    if source_mask_bs is not None and memory is not None:
        source_mask_bs = tf.convert_to_tensor(source_mask_bs)
        checks.check_token_mask(
            "source mask", source_mask_bs.shape, source_mask_bs.dtype.name, memory[:2]
        )
    rows, heads = batch if memory is None else memory[0], config.key_value_heads
    nothing = KeyValues(
        tf.zeros([rows, 0, heads, config.key_size], dtype),
        tf.zeros([rows, 0, heads, config.value_size], dtype),
    )
    layers: list[Mapping[str, KeyValues]] = []
    for layer in model.decoder.layers:
        caches = {"self_attention": nothing}
        if memory_bsd is not None:
            key_bsgk, value_bsge = layer.cross_attention.keys_and_values(memory_bsd)
            caches["cross_attention"] = KeyValues(key_bsgk, value_bsge)
        layers.append(caches)
    read_bt = tf.zeros([rows, 0], tf.bool)
    return {"source_mask_bs": source_mask_bs, "target_mask_bt": read_bt, "layers": layers}


def decode_step(
    model: Transformer, target: tf.Tensor, cache: Cache, target_mask_bt: tf.Tensor | None = None
) -> tuple[tf.Tensor, Cache]:
    """Logits `b t v` of the next t tokens of the target, those rows of `decode`, and the cache
    after.

    target and target_mask_bt: of these tokens only; t may differ from step to step. A layer with a
    window keeps no more keys than its window. In evaluation. Raises ValueError on ids, masks and
    shapes that do not fit.
    """
    config, source_mask_bs, past_bt = model.config, cache["source_mask_bs"], cache["target_mask_bt"]
    target = tf.convert_to_tensor(target)
    count, length = target.shape[1], past_bt.shape[1] + target.shape[1]
    checks.check_same_batch(cache=past_bt.shape, target=target.shape)
    checks.check_length(length, config.max_positions)
    target_mask_bt = inputs.target_mask(config, target, target_mask_bt)
    read_bt = tf.concat([past_bt, target_mask_bt], axis=1)
    position_bt, position_pd = positions(config, read_bt, count), None
    if config.positions == "sinusoidal":
        position_pd = inputs.sinusoids(config, length, model.compute_dtype)
    x_btd = inputs.embed(model, "target", target, position_bt, position_pd=position_pd)
    self_mask_bhts = mask.padding_mask(read_bt)
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    layers: list[Mapping[str, KeyValues]] = []

    def through(
        layer: DecoderLayer, x_btd: tf.Tensor, rotation: Rotation | None, index: int
    ) -> tf.Tensor:
        before = cache["layers"][index]
        x_btd, after = decoder_layer_step(
            layer, x_btd, before, self_mask_bhts, cross_mask_bhts, rotation
        )
        layers.append(after)
        return x_btd

    logits_btv = model.head(model.decoder.walk(x_btd, through, position_bt))
    return logits_btv, {**cache, "target_mask_bt": read_bt, "layers": layers}


def decoder_layer_step(
    layer: DecoderLayer,
    x_btd: tf.Tensor,
    cache: Mapping[str, KeyValues],
    self_mask_bhts: tf.Tensor | None = None,
    cross_mask_bhts: tf.Tensor | None = None,
    rotation: Rotation | None = None,
) -> tuple[tf.Tensor, Mapping[str, KeyValues]]:
    """The layer on the next tokens of a target, and its cache after them. self_mask_bhts: over all
    tokens that were read, those of x among them."""
    after = dict(cache)

    def attend(y_btd: tf.Tensor) -> tf.Tensor:
        query_bthk, key_btgk, value_btge = layer.self_attention.project(y_btd, y_btd, rotation)
        read = cache["self_attention"].update(key_btgk, value_btge)
        after["self_attention"] = read.last(layer.self_attention.scores.window)
        heads, mask_bhts = Heads(query_bthk, read.key_bsgk, read.value_bsge), self_mask_bhts
        if mask_bhts is not None:
            mask_bhts = mask_bhts[..., -read.key_bsgk.shape[1] :]
        return layer.self_attention.attend(heads, mask_bhts)

    def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
        key_bsgk, value_bsge = cache["cross_attention"]
        heads = Heads(layer.cross_attention.queries(y_btd), key_bsgk, value_bsge)
        return layer.cross_attention.attend(heads, cross_mask_bhts)

    crossing = attend_to_memory if "cross_attention" in cache else None
    return layer.run(x_btd, attend, crossing), after


def decode_in_steps(
    model: Transformer,
    target: tf.Tensor,
    memory_bsd: tf.Tensor | None,
    splits: Sequence[int],
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
    steps: Steps = (start_cache, decode_step),
) -> tf.Tensor:
    """`decode` in steps of the lengths `splits`: the same logits `b t v`, however t is split.

    steps: how the cache starts and is read, such as by `programs.static_cache`. Raises ValueError
    as `decode`, and if splits are not lengths of at least 1 that add up to t.
    """
    model.config.need_decoder()
    target = tf.convert_to_tensor(target)
    inputs.InputLayers.of(model, "target").embedding.check_ids(target)
    checks.check_splits(splits, target.shape)
    checks.check_length(target.shape[1], model.config.max_positions)
    target_mask_bt = inputs.target_mask(model.config, target, target_mask_bt)
    batch = target.shape[0] if memory_bsd is None else None
    start, step = steps
    cache, logits = start(model, memory_bsd, source_mask_bs, batch), []
    for end, length in zip(accumulate(splits), splits, strict=True):
        part = slice(end - length, end)
        logits_btv, cache = step(model, target[:, part], cache, target_mask_bt[:, part])
        logits.append(logits_btv)
    return tf.concat(logits, axis=1)


def reorder(cache: Cache, row_b: tf.Tensor) -> Cache:
    """The cache whose row i is what row `row_b[i]` was: beams that live on keep their past."""
    return tf.nest.map_structure(lambda x: None if x is None else tf.gather(x, row_b), cache)


def positions(config: TransformerConfig, read_bt: tf.Tensor, length: int) -> tf.Tensor:
    """The positions of the last tokens that have been read."""
    return token_positions(read_bt, config.position_start)[:, -length:]
