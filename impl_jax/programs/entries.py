"""Entry points of an exported model: the whole model, its encoder, and a decoding step.

The cache of the step is an argument and a result. Entry points take ids and masks, and return their
results by name. Lengths may be symbols of `jax.export`. model: in evaluation mode.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ..cache import KeyValues, decoder_layer_step
from ..inputs import embed
from ..layers import DecoderLayer
from ..mask import padding_mask
from ..positional_encoding import token_positions
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Text

__all__ = ["encode", "forward", "step"]

Named = dict[str, jax.Array]


def forward(
    model: Transformer,
    source: jax.Array | None = None,
    target: jax.Array | None = None,
    source_mask_bs: jax.Array | None = None,
    target_mask_bt: jax.Array | None = None,
    segment_bs: jax.Array | None = None,
) -> Named:
    """The whole model: `logits_btv` of a decoder; of an encoder-only model `hidden_bsd` and the
    outputs of its heads: `pooled_bd`, `classes_bc`, `logits_bsv`.
    """
    text: Any = None if source is None else Text(source, source_mask_bs, segment_bs)
    if target is not None:
        return {"logits_btv": model(text, Text(target, target_mask_bt))}
    config, found = model.config, {"hidden_bsd": model.encode(text)}
    if config.pooler:
        found["pooled_bd"] = model.pooler(found["hidden_bsd"])
    if config.classes:
        found["classes_bc"] = model.classifier(found["pooled_bd"])
    if config.masked_language_head:
        kernel_dv = model.source_embedding.table.T if config.tie_logits else None
        found["logits_bsv"] = model.masked_language_head(found["hidden_bsd"], kernel_dv)
    return found


def encode(model: Transformer, source: jax.Array, source_mask_bs: jax.Array) -> Named:
    """The encoder, with the keys and values of its memory for every decoder layer: `memory_bsd`,
    `cross_keys_lbsgk`, `cross_values_lbsge`.
    """
    memory_bsd = model.encode(Text(source, source_mask_bs))
    layers = model.decoder.layers
    pairs = [layer.cross_attention.keys_and_values(memory_bsd) for layer in layers]
    return {
        "memory_bsd": memory_bsd,
        "cross_keys_lbsgk": jnp.stack([key_bsgk for key_bsgk, _ in pairs]),
        "cross_values_lbsge": jnp.stack([value_bsge for _, value_bsge in pairs]),
    }


def step(
    model: Transformer,
    target: jax.Array,
    target_mask_bs: jax.Array,
    source_mask_bs: jax.Array | None = None,
    **held: jax.Array,
) -> Named:
    """Reads the next t tokens of a target after p: `logits_btv`, and all keys and values so far.

    A stateless `cache.decode_step`. target_mask_bs: of all `p + t` tokens. held: keys_lbsgk and
    values_lbsge of every layer, p long, with p = 0 at the start; cross_keys_lbsgk and
    cross_values_lbsge from `encode`. A layer with a window keeps all keys, and its mask hides the
    far ones.
    """
    read, end = held["keys_lbsgk"].shape[2], target_mask_bs.shape[1]
    position_bt = token_positions(target_mask_bs, model.config.position_start)[:, read:]
    x_btd = embed(model, "target", target, position_bt, length=end)
    masks = padding_mask(target_mask_bs), padding_mask(source_mask_bs)
    kept: list[KeyValues] = []

    def through(
        layer: DecoderLayer, x_btd: jax.Array, rotation: Rotation | None, index: int
    ) -> jax.Array:
        past = {"self_attention": KeyValues(held["keys_lbsgk"][index], held["values_lbsge"][index])}
        if "cross_keys_lbsgk" in held:
            memory = held["cross_keys_lbsgk"][index], held["cross_values_lbsge"][index]
            past["cross_attention"] = KeyValues(*memory)
        x_btd, after = decoder_layer_step(layer, x_btd, past, *masks, rotation)
        kept.append(after["self_attention"])
        return x_btd

    logits_btv = model.head(model.decoder.walk(x_btd, through, position_bt))
    keys, values = map(jnp.stack, zip(*kept, strict=True))
    return {"logits_btv": logits_btv, "keys_lbsgk": keys, "values_lbsge": values}
