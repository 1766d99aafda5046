"""The functions of a model that is exported: the whole of it, and for decoding its encoder and a
step, whose cache is an argument and a result.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..attention import MultiHeadAttention, normed, scaled_dot_product_attention
from ..inputs import embed
from ..layers import DecoderLayer
from ..mask import causal_mask, padding_mask, window_mask
from ..positional_encoding import token_positions
from ..rotary import Rotation, rotations
from ..transformer import Transformer

__all__ = ["Encode", "Forward", "Step"]

Named = dict[str, jax.Array]


class Forward(nnx.Module):
    """The whole model: of a decoder `logits_btv`; of an encoder-only model `hidden_bsd`, and what
    its heads give: `pooled_bd`, `classes_bc`, `logits_bsv`.

    Every function takes the ids and masks that its stacks read, and returns its results by name.
    Their lengths may be symbols of `jax.export`. model: in evaluation.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def __call__(
        self,
        source: Any = None,
        target: jax.Array | None = None,
        source_mask_bs: jax.Array | None = None,
        target_mask_bt: jax.Array | None = None,
        segment_bs: jax.Array | None = None,
    ) -> Named:
        model, config = self.model, self.model.config
        if config.decoder_layers:
            return {"logits_btv": model(source, target, source_mask_bs, target_mask_bt)}
        found = {"hidden_bsd": model.encode(source, source_mask_bs, segment_bs=segment_bs)}
        if config.pooler:
            found["pooled_bd"] = model.pooler(found["hidden_bsd"])
        if config.classes:
            found["classes_bc"] = model.classifier(found["pooled_bd"])
        if config.masked_language_head:
            tied = (model.token_embedding("source").table.T,) * config.tie_logits
            found["logits_bsv"] = model.masked_language_head(found["hidden_bsd"], *tied)
        return found


class Encode(nnx.Module):
    """The encoder, and the keys and values of its memory for every layer of the decoder:
    `memory_bsd`, `cross_keys_lbsgk`, `cross_values_lbsge`.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def __call__(self, source: jax.Array, source_mask_bs: jax.Array) -> Named:
        memory_bsd = self.model.encode(source, source_mask_bs)
        keys, values = [], []
        for layer in self.model.decoder.layers:
            key_bsgk, value_bsge = layer.cross_attention.keys_and_values(memory_bsd)
            keys.append(normed(layer.cross_attention.key_norm, key_bsgk))
            values.append(value_bsge)
        return {
            "memory_bsd": memory_bsd,
            "cross_keys_lbsgk": jnp.stack(keys),
            "cross_values_lbsge": jnp.stack(values),
        }


class Step(nnx.Module):
    """The next t tokens of a target after p that were read: `logits_btv`, and the keys and values
    of all of them, which the next step takes.

    It is `cache.decode_step` without state. target_mask_bs: of all `p + t` tokens. keys_lbsgk,
    values_lbsge: of every layer, p long; p is 0 at the start. cross_keys_lbsgk, cross_values_lbsge:
    as `Encode` gives them. A layer with a window keeps all keys, and its mask hides the far ones.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def __call__(
        self,
        target: jax.Array,
        target_mask_bs: jax.Array,
        source_mask_bs: jax.Array | None = None,
        *,
        keys_lbsgk: jax.Array,
        values_lbsge: jax.Array,
        cross_keys_lbsgk: jax.Array | None = None,
        cross_values_lbsge: jax.Array | None = None,
    ) -> Named:
        model, config = self.model, self.model.config
        read, length = keys_lbsgk.shape[2], target.shape[1]
        end = read + length
        position_bt = token_positions(target_mask_bs, config.position_start)[:, read:]
        x_btd = embed(model, "target", target, position_bt, length=end)
        turned = rotations(config, range(config.decoder_layers), x_btd, position_bt)
        own_bhts = padding_mask(target_mask_bs) & causal_mask(length, end)
        windows = {layer.self_attention.window for layer in model.decoder.layers}
        masks = {
            window: own_bhts & window_mask(length, end, window) if window else own_bhts
            for window in windows
        }
        cross_bhts = None if source_mask_bs is None else padding_mask(source_mask_bs)
        kept = []
        for index, layer in enumerate(model.decoder.layers):
            own = keys_lbsgk[index], values_lbsge[index]
            cross = None
            if cross_keys_lbsgk is not None and cross_values_lbsge is not None:
                cross = cross_keys_lbsgk[index], cross_values_lbsge[index], cross_bhts
            mask_bhts = masks[layer.self_attention.window]
            x_btd, *pair = _layer(layer, x_btd, own, mask_bhts, turned[index], cross)
            kept.append(pair)
        keys, values = zip(*kept, strict=True)
        x_btd = model.decoder.final_norm(x_btd) if model.decoder.final_norm else x_btd
        return {
            "logits_btv": model.head(x_btd),
            "keys_lbsgk": jnp.stack(keys),
            "values_lbsge": jnp.stack(values),
        }


def _layer(
    layer: DecoderLayer,
    x_btd: jax.Array,
    own: tuple[jax.Array, jax.Array],
    mask_bhts: jax.Array,
    rotation: Rotation | None,
    cross: Any,
) -> tuple[jax.Array, ...]:
    """Runs the layer on the next tokens: its output, and all keys and values of its
    self-attention.
    """
    kept: list[jax.Array] = []

    def attend(y_btd: jax.Array) -> jax.Array:
        query_bthk, key_btgk, value_btge = layer.self_attention.project(y_btd, y_btd)
        query_bthk, key_btgk = layer.self_attention.placed(query_bthk, key_btgk, rotation)
        new = key_btgk, value_btge
        key_bsgk, value_bsge = (
            jnp.concatenate(pair, axis=1) for pair in zip(own, new, strict=True)
        )
        kept.extend((key_bsgk, value_bsge))
        return _attended(layer.self_attention, query_bthk, key_bsgk, value_bsge, mask_bhts)

    def attend_to_memory(y_btd: jax.Array) -> jax.Array:
        attention = layer.cross_attention
        query_bthk = normed(attention.query_norm, attention.queries(y_btd))
        return _attended(attention, query_bthk, *cross)

    x_btd = layer.run(x_btd, attend, None if cross is None else attend_to_memory)
    return x_btd, *kept


def _attended(
    attention: MultiHeadAttention,
    query_bthk: jax.Array,
    key_bsgk: jax.Array,
    value_bsge: jax.Array,
    mask_bhts: jax.Array | None,
) -> jax.Array:
    """`attention.attend` to keys in their places; the mask has causality and window."""
    output_bthe: Any = scaled_dot_product_attention(
        query_bthk,
        key_bsgk,
        value_bsge,
        mask_bhts,
        scale=attention.config.score_scale,
        cap=attention.config.score_cap,
    )
    return attention.output(output_bthe)
