"""The cache of one length, into which a step writes in place, and whose keys the beams of a row share.

target_mask_bt, layers (of each the keys and values of self_attention and cross_attention) and, but of a decoder alone, source_mask_bs as in
the reference. Beside them read, how many tokens each row has read; start, how many of these only fill up its length, which positions that
are numbered from the row's first token do not count; and position_td, what is added to an embedding at each position. Keys are `b g k s`
and values `b g s e`, as they are multiplied.

The rows n of the target are the w beams of the first row b, then those of the next. They share their keys: those of all beams' first token,
of the second, ...; target_mask_bt, `n (t w)`, says which of them are the real tokens of the beam's own past.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig

from .. import inputs, mask
from ..attention import attend_by_head
from ..framework import keras
from ..layers import DecoderLayer
from ..positional_encoding import positional_encoding
from ..transformer import Transformer

__all__ = ["beams", "branch", "empty", "forward_step"]

Cache: TypeAlias = Mapping[str, Any]


def empty(
    model: Transformer,
    memory_bsd: tf.Tensor | None,
    source_mask_bs: tf.Tensor | None,
    batch: int,
    length: int,
) -> Cache:
    """The cache of so many rows before the first of so many tokens."""
    config, dtype = model.config, model.compute_dtype
    layers = []
    for layer in model.decoder.layers:
        key_bgks = tf.zeros([batch, config.key_value_heads, config.key_size, length], dtype)
        value_bgse = tf.zeros([batch, config.key_value_heads, length, config.value_size], dtype)
        layers.append({"self_attention": (key_bgks, value_bgse)})
        if memory_bsd is not None:
            layers[-1]["cross_attention"] = _by_head(
                *layer.cross_attention.keys_and_values(memory_bsd)
            )
    of_source = {} if memory_bsd is None else {"source_mask_bs": source_mask_bs}
    return {
        **of_source,
        "target_mask_bt": tf.zeros([batch, length], tf.bool),
        "layers": layers,
        "read": tf.constant(0),
        "start": tf.constant(0),
        "position_td": _table(model, length),
    }


def _table(model: Transformer, length: int) -> tf.Tensor:
    """What is added at each of so many positions; a learned table that is shorter serves fewer."""
    if model.config.positions == "learned":
        return model.target_position_embedding(
            tf.minimum(tf.range(length), model.config.max_positions - 1)[tf.newaxis]
        )[0]
    return positional_encoding(tf.range(length), model.config.model_width, model.compute_dtype)


def beams(cache: Cache) -> int:
    """How many rows of the target share the keys of a row."""
    return cache["target_mask_bt"].shape[1] // cache["position_td"].shape[0]


def branch(cache: Cache, count: int) -> Cache:
    """The cache of so many beams of every row, which have all read what the row has: as the first of them."""

    def apart(x: tf.Tensor, axis: int) -> tf.Tensor:
        """The positions of that axis, each followed by room for those of the other beams."""
        wider = tf.stack([x, *[tf.zeros_like(x)] * (count - 1)], axis=axis + 1)
        return tf.reshape(wider, [*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]])

    layers = []
    for layer in cache["layers"]:
        key_bgks, value_bgse = layer["self_attention"]
        layers.append({**layer, "self_attention": (apart(key_bgks, 3), apart(value_bgse, 2))})
    return {
        **cache,
        "target_mask_bt": apart(tf.repeat(cache["target_mask_bt"], count, axis=0), 1),
        "layers": layers,
    }


def forward_step(
    model: Transformer, target: tf.Tensor, cache: Cache, target_mask_bt: tf.Tensor
) -> tuple[tf.Tensor, Cache]:
    """`decode_step` on what has been checked."""
    read, source_mask_bs, width = cache["read"], cache.get("source_mask_bs"), beams(cache)
    (rows, count), vocabulary = target.shape[:2], model.config.target_vocabulary
    batch, queries = rows // width, count * width
    mask_bt = _with_tokens(cache, target_mask_bt, width)
    token_s = tf.range(mask_bt.shape[1]) // width  # which token each key is of
    position_bt = _positions(model.config, mask_bt, token_s, cache, count)
    x_btd = inputs.embed(model, "target", target, position_bt, position_pd=cache["position_td"])
    x_btd = tf.reshape(_by_token(x_btd, width), [batch, queries, x_btd.shape[2]])
    not_after_ts = token_s <= read + tf.range(count)[:, tf.newaxis]
    self_mask_bhts = tf.reshape(
        _by_token(mask_bt[:, tf.newaxis] & not_after_ts, width),
        [batch, 1, queries, mask_bt.shape[1]],
    )
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    new_layers = []
    for layer, layer_cache in zip(model.decoder.layers, cache["layers"], strict=True):
        x_btd, layer_cache = _decoder_layer_step(
            layer, x_btd, layer_cache, read * width, self_mask_bhts, cross_mask_bhts
        )
        new_layers.append(layer_cache)
    logits_btwv = tf.reshape(
        model.head(model.decoder.normalise(x_btd)), [batch, count, width, vocabulary]
    )
    logits_btv = tf.reshape(tf.transpose(logits_btwv, [0, 2, 1, 3]), [rows, count, vocabulary])
    return logits_btv, {
        **cache,
        "target_mask_bt": mask_bt,
        "layers": new_layers,
        "read": read + count,
    }


def _decoder_layer_step(
    layer: DecoderLayer,
    x_btd: tf.Tensor,
    cache: Mapping[str, Any],
    place: tf.Tensor,
    self_mask_bhts: tf.Tensor,
    cross_mask_bhts: tf.Tensor | None,
) -> tuple[tf.Tensor, dict[str, Any]]:
    """`DecoderLayer` on the next tokens, in evaluation; their keys and values are written into the cache from that place on."""
    attention, (key_bgks, value_bgse) = layer.self_attention, cache["self_attention"]
    query_bthk, key_btgk, value_btge = attention.project(layer.residual_in("self_attention", x_btd))
    new_key_bgks, new_value_bgse = _by_head(key_btgk, value_btge)
    # In place within a graph, where nothing else reads the old ones: not even a reshape may stand between the cache and its use.
    key_bgks = keras.ops.slice_update(key_bgks, tf.stack([0, 0, 0, place]), new_key_bgks)
    value_bgse = keras.ops.slice_update(value_bgse, tf.stack([0, 0, place, 0]), new_value_bgse)
    new_cache = {**cache, "self_attention": (key_bgks, value_bgse)}
    y_btd = attention.output_projection(
        attend_by_head(query_bthk, key_bgks, value_bgse, self_mask_bhts)
    )
    x_btd = layer.residual_out("self_attention", x_btd, y_btd, {})

    if "cross_attention" in cache:
        attention, (key_bgks, value_bgse) = layer.cross_attention, cache["cross_attention"]
        query_bthk = attention.queries(layer.residual_in("cross_attention", x_btd))
        y_btd = attention.output_projection(
            attend_by_head(query_bthk, key_bgks, value_bgse, cross_mask_bhts)
        )
        x_btd = layer.residual_out("cross_attention", x_btd, y_btd, {})

    y_btd = layer.feed_forward(layer.residual_in("feed_forward", x_btd))
    return layer.residual_out("feed_forward", x_btd, y_btd, {}), new_cache


def _by_head(key_bsgk: tf.Tensor, value_bsge: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """`b g k s` and `b g s e`."""
    return tf.transpose(key_bsgk, [0, 2, 3, 1]), tf.transpose(value_bsge, [0, 2, 1, 3])


def _with_tokens(cache: Cache, target_mask_bt: tf.Tensor, width: int) -> tf.Tensor:
    """The mask of the keys, when the tokens that are about to be read are among them."""
    rows, count = target_mask_bt.shape
    own_b1w = tf.tile(tf.eye(width, dtype=tf.bool), [rows // width, 1])[:, tf.newaxis]
    new_bt = tf.reshape(target_mask_bt[..., tf.newaxis] & own_b1w, [rows, count * width])
    return keras.ops.slice_update(
        cache["target_mask_bt"], tf.stack([0, cache["read"] * width]), new_bt
    )


def _positions(
    config: TransformerConfig, mask_bs: tf.Tensor, token_s: tf.Tensor, cache: Cache, count: int
) -> tf.Tensor:
    """The positions of so many tokens after those that had been read, counted from the first real one, or from the row's first."""
    if config.position_start == "row":
        first_b1 = tf.fill([mask_bs.shape[0], 1], cache["start"])
    else:
        first_b1 = tf.reduce_min(
            tf.where(mask_bs, token_s, mask_bs.shape[1]), axis=1, keepdims=True
        )
    return tf.maximum(cache["read"] + tf.range(count) - first_b1, 0)


def _by_token(x_btd: tf.Tensor, width: int) -> tf.Tensor:
    """`b t w d`: the first tokens of all beams of a row, then the second ones, as their keys are."""
    return tf.transpose(
        tf.reshape(x_btd, [x_btd.shape[0] // width, width, *x_btd.shape[1:]]), [0, 2, 1, 3]
    )
