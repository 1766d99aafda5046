"""The functions of a model that is exported: the whole of it, and for decoding its encoder and a
step, whose cache is an argument and a result.

Each takes the ids and masks that its stacks read, and returns its results by name. Their lengths
may be symbols of `jax.export`. model: in evaluation.
"""

from typing import Any

import jax
import jax.numpy as jnp

from .. import cache
from ..cache import KeyValues
from ..mask import padding_mask
from ..positional_encoding import token_positions
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
    """The whole model: of a decoder `logits_btv`; of an encoder-only model `hidden_bsd`, and what
    its heads give: `pooled_bd`, `classes_bc`, `logits_bsv`.
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
    """The encoder, and the keys and values of its memory for every layer of the decoder:
    `memory_bsd`, `cross_keys_lbsgk`, `cross_values_lbsge`.
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
    """The next t tokens of a target after p that were read: `logits_btv`, and the keys and values
    of all of them, which the next step takes: `cache.decode_step` without state.

    target_mask_bs: of all `p + t` tokens. held: keys_lbsgk and values_lbsge of every layer, p long,
    p is 0 at the start; cross_keys_lbsgk and cross_values_lbsge as `encode` gives them. A layer
    with a window keeps all keys, and does not see the far ones.
    """
    read, pairs = held["keys_lbsgk"].shape[2], ("keys_lbsgk", "values_lbsge")
    position_bt = token_positions(target_mask_bs, model.config.position_start)[:, read:]
    layers: list[dict[str, KeyValues]] = []
    for index in range(model.config.decoder_layers):
        layers.append({"self_attention": _Whole(*(held[name][index] for name in pairs))})
        if "cross_keys_lbsgk" in held:
            memory = KeyValues(*(held[f"cross_{name}"][index] for name in pairs))
            layers[-1]["cross_attention"] = memory
    before = cache.Cache(source_mask_bs, target_mask_bs, layers)
    ahead = cache.Next(position_bt, padding_mask(target_mask_bs))
    logits_btv, after = cache.read(model, target, before, ahead)
    keys, values = zip(*(layer["self_attention"] for layer in after.layers), strict=True)
    return {
        "logits_btv": logits_btv,
        "keys_lbsgk": jnp.stack(keys),
        "values_lbsge": jnp.stack(values),
    }


class _Whole(KeyValues):
    """Those of all tokens, also in a layer with a window."""

    def last(self, window: int) -> "_Whole":
        return self
