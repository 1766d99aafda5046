"""The functions of a model that is exported: the whole of it, and for decoding its encoder and a
step, whose cache is an argument and a result.

Every function takes the ids and masks that its stacks read, and returns its results by name. In
evaluation; lengths may be unknown to the graph.
"""

import tensorflow as tf

from .. import cache
from ..attention import MultiHeadAttention
from ..cache import KeyValues
from ..framework import sizes
from ..inputs import sinusoids
from ..mask import causal_mask, padding_mask, window_mask
from ..positional_encoding import token_positions
from ..transformer import Transformer
from ..values import Heads, Text
from .static_cache import attend_by_mask

__all__ = ["encode", "forward", "step"]

Named = dict[str, tf.Tensor]


def forward(
    model: Transformer,
    source: tf.Tensor | None = None,
    target: tf.Tensor | None = None,
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
    segment_bs: tf.Tensor | None = None,
) -> Named:
    """The whole model: of a decoder `logits_btv`; of an encoder-only model `hidden_bsd`, and what
    its heads give: `pooled_bd`, `classes_bc`, `logits_bsv`."""
    config, text = model.config, Text.of(source, source_mask_bs, segment_bs)
    if config.decoder_layers:
        return {"logits_btv": model(text, Text(target, target_mask_bt), training=False)}
    found = {"hidden_bsd": model.encode(text, training=False)}
    if config.pooler:
        found["pooled_bd"] = model.pooler(found["hidden_bsd"])
    if config.classes:
        found["classes_bc"] = model.classifier(found["pooled_bd"], training=False)
    if config.masked_language_head:
        table = model.source_embedding.adapted() if config.tie_logits else None
        found["logits_bsv"] = model.masked_language_head(found["hidden_bsd"], table)
    return found


def encode(model: Transformer, source: tf.Tensor, source_mask_bs: tf.Tensor) -> Named:
    """The encoder, and the keys and values of its memory for every layer of the decoder:
    `memory_bsd`, `cross_keys_lbsgk`, `cross_values_lbsge`.
    """
    memory_bsd = model.encode(Text(source, source_mask_bs), training=False)
    layers = model.decoder.layers
    pairs = [layer.cross_attention.keys_and_values(memory_bsd) for layer in layers]
    keys, values = zip(*pairs, strict=True)
    return {
        "memory_bsd": memory_bsd,
        "cross_keys_lbsgk": tf.stack(keys),
        "cross_values_lbsge": tf.stack(values),
    }


def step(
    model: Transformer,
    target: tf.Tensor,
    target_mask_bs: tf.Tensor,
    source_mask_bs: tf.Tensor | None = None,
    **held: tf.Tensor,
) -> Named:
    """The next t tokens of a target after p that were read: `logits_btv`, and the keys and values
    of all of them, which the next step takes: `cache.decode_step` without state.

    target_mask_bs: of all `p + t` tokens. held: keys_lbsgk, values_lbsge of every layer, p long,
    and p is 0 at the start; beside an encoder cross_keys_lbsgk, cross_values_lbsge, as `encode`
    gives them. A layer with a window keeps all keys, and its mask hides the far ones.
    """
    config, length, end = model.config, sizes(target)[1], sizes(target_mask_bs)[1]
    position_bt = token_positions(target_mask_bs, config.position_start)[:, end - length :]
    position_pd = None
    if config.positions == "sinusoidal":
        position_pd = sinusoids(config, end, model.compute_dtype)
    own_bhts = padding_mask(target_mask_bs) & causal_mask(length, end)
    masks = {
        window: own_bhts & window_mask(length, end, window) if window else own_bhts
        for window in {config.layer_kind(layer).window for layer in range(config.decoder_layers)}
    }
    layers: list[dict[str, KeyValues]] = []
    pairs = ("keys_lbsgk", "values_lbsge")
    for index in range(config.decoder_layers):
        layers.append({"self_attention": _Whole(*(held[name][index] for name in pairs))})
        if "cross_keys_lbsgk" in held:
            memory = KeyValues(*(held[f"cross_{name}"][index] for name in pairs))
            layers[-1]["cross_attention"] = memory
    before = cache.Cache(source_mask_bs, target_mask_bs, layers)
    ahead = cache.Next(position_bt, None, position_pd, masks)
    logits_btv, after = cache.read(model, target, before, ahead)
    keys, values = zip(*(layer["self_attention"] for layer in after.layers), strict=True)
    return {
        "logits_btv": logits_btv,
        "keys_lbsgk": tf.stack(keys),
        "values_lbsge": tf.stack(values),
    }


class _Whole(KeyValues):
    """Those of all tokens, also in a layer with a window: the mask alone hides the far ones."""

    def step(
        self, key_btgk: tf.Tensor, value_btge: tf.Tensor, ahead: cache.Next, window: int
    ) -> "tuple[_Whole, _Whole, tf.Tensor]":
        read = _Whole(*self.update(key_btgk, value_btge))
        return read, read, ahead.masks[window]

    def attend(
        self, attention: MultiHeadAttention, query_bthk: tf.Tensor, mask_bhts: tf.Tensor
    ) -> tf.Tensor:
        return attend_by_mask(attention, Heads(query_bthk, *self), mask_bhts)
