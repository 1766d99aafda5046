"""Entry points of an exported model: the whole model, its encoder, and a decoding step.

The cache of the step is an argument and a result. Entry points take ids and masks, and return their
results by name. Evaluation mode; lengths may be unknown to the graph.
"""

import tensorflow as tf

from ..cache import KeyValues, decoder_layer_step
from ..framework import sizes
from ..inputs import embed, sinusoids
from ..layers import DecoderLayer
from ..mask import causal_mask, padding_mask, window_mask
from ..positional_encoding import token_positions
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Text
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
    """The whole model: `logits_btv` of a decoder; of an encoder-only model `hidden_bsd` and the
    outputs of its heads: `pooled_bd`, `classes_bc`, `logits_bsv`.
    """
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
    """The encoder, with the keys and values of its memory for every decoder layer: `memory_bsd`,
    `cross_keys_lbsgk`, `cross_values_lbsge`.
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
    """Reads the next t tokens of a target after p: `logits_btv`, and all keys and values so far.

    A stateless `cache.decode_step`. target_mask_bs: of all `p + t` tokens. held: keys_lbsgk and
    values_lbsge of every layer, p long, with p = 0 at the start; cross_keys_lbsgk and
    cross_values_lbsge from `encode`. A layer with a window keeps all keys, and its mask hides the
    far ones.
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
    cross_bhts, kept = padding_mask(source_mask_bs), list[KeyValues]()
    x_btd = embed(model, "target", target, position_bt, position_pd=position_pd)

    def through(
        layer: DecoderLayer, x_btd: tf.Tensor, rotation: Rotation | None, index: int
    ) -> tf.Tensor:
        past = {"self_attention": KeyValues(held["keys_lbsgk"][index], held["values_lbsge"][index])}
        if "cross_keys_lbsgk" in held:
            memory = held["cross_keys_lbsgk"][index], held["cross_values_lbsge"][index]
            past["cross_attention"] = KeyValues(*memory)
        own_bhts = masks[config.layer_kind(index).window]
        x_btd, after = decoder_layer_step(
            layer, x_btd, past, own_bhts, cross_bhts, rotation, attend_by_mask
        )
        kept.append(after["self_attention"])
        return x_btd

    logits_btv = model.head(model.decoder.walk(x_btd, through, position_bt))
    keys, values = map(tf.stack, zip(*kept, strict=True))
    return {"logits_btv": logits_btv, "keys_lbsgk": keys, "values_lbsge": values}
