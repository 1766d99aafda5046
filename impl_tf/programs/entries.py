"""The functions of a model that is exported: the whole of it, and for decoding its encoder and a
step, whose cache is an argument and a result.
"""

from typing import Any

import tensorflow as tf

from ..framework import sizes
from ..inputs import embed, sinusoids
from ..layers import DecoderLayer
from ..mask import causal_mask, padding_mask, window_mask
from ..positional_encoding import token_positions
from ..rotary import Rotation
from ..transformer import Transformer

__all__ = ["Encode", "Forward", "Step"]

Named = dict[str, tf.Tensor]


class Forward(tf.Module):
    """The whole model: of a decoder `logits_btv`; of an encoder-only model `hidden_bsd`, and what
    its heads give: `pooled_bd`, `classes_bc`, `logits_bsv`.

    Every function takes the ids and masks that its stacks read, and returns its results by name.
    In evaluation; lengths may be unknown to the graph.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def __call__(
        self,
        source: Any = None,
        target: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        segment_bs: tf.Tensor | None = None,
    ) -> Named:
        model, config = self.model, self.model.config
        if config.decoder_layers:
            masks = source_mask_bs, target_mask_bt
            return {"logits_btv": model(source, target, *masks, training=False)}
        hidden_bsd = model.encode(source, source_mask_bs, segment_bs=segment_bs, training=False)
        found = {"hidden_bsd": hidden_bsd}
        if config.pooler:
            found["pooled_bd"] = model.pooler(found["hidden_bsd"])
        if config.classes:
            found["classes_bc"] = model.classifier(found["pooled_bd"], training=False)
        if config.masked_language_head:
            tied = (model.token_embedding("source").adapted(),) if config.tie_logits else ()
            found["logits_bsv"] = model.masked_language_head(found["hidden_bsd"], *tied)
        return found


class Encode(tf.Module):
    """The encoder, and the keys and values of its memory for every layer of the decoder:
    `memory_bsd`, `cross_keys_lbsgk`, `cross_values_lbsge`.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def __call__(self, source: tf.Tensor, source_mask_bs: tf.Tensor) -> Named:
        memory_bsd = self.model.encode(source, source_mask_bs, training=False)
        layers = self.model.decoder.layers
        pairs = [layer.cross_attention.keys_and_values(memory_bsd) for layer in layers]
        keys, values = zip(*pairs, strict=True)
        return {
            "memory_bsd": memory_bsd,
            "cross_keys_lbsgk": tf.stack(keys),
            "cross_values_lbsge": tf.stack(values),
        }


class Step(tf.Module):
    """The next t tokens of a target after p that were read: `logits_btv`, and the keys and values
    of all of them, which the next step takes.

    It is `cache.decode_step` without state. target_mask_bs: of all `p + t` tokens. keys_lbsgk,
    values_lbsge: of every layer, p long; p is 0 at the start. cross_keys_lbsgk, cross_values_lbsge:
    as `Encode` gives them. A layer with a window keeps all keys, and its mask hides the far ones.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def __call__(
        self,
        target: tf.Tensor,
        target_mask_bs: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        *,
        keys_lbsgk: tf.Tensor,
        values_lbsge: tf.Tensor,
        cross_keys_lbsgk: tf.Tensor | None = None,
        cross_values_lbsge: tf.Tensor | None = None,
    ) -> Named:
        model, config = self.model, self.model.config
        length, end = sizes(target)[1], sizes(target_mask_bs)[1]
        position_bt = token_positions(target_mask_bs, config.position_start)[:, end - length :]
        encoding_pd = None
        if config.positions == "sinusoidal":
            encoding_pd = sinusoids(config, end, model.compute_dtype)
        x_btd = embed(model, "target", target, position_bt, position_pd=encoding_pd)
        kinds = [config.layer_kind(layer) for layer in range(config.decoder_layers)]
        turned: list[Rotation | None] = [None] * len(kinds)
        if config.positions == "rotary":
            turned = model.decoder.rotations(position_bt)
        own_bhts = padding_mask(target_mask_bs) & causal_mask(length, end)
        masks = {
            window: own_bhts & window_mask(length, end, window) if window else own_bhts
            for window in {kind.window for kind in kinds}
        }
        cross_bhts = None if source_mask_bs is None else padding_mask(source_mask_bs)
        kept = []
        for index, (layer, kind) in enumerate(zip(model.decoder.layers, kinds, strict=True)):
            own = keys_lbsgk[index], values_lbsge[index]
            cross = None
            if cross_keys_lbsgk is not None and cross_values_lbsge is not None:
                cross = cross_keys_lbsgk[index], cross_values_lbsge[index], cross_bhts
            x_btd, *pair = _layer(layer, x_btd, own, masks[kind.window], turned[index], cross)
            kept.append(pair)
        keys, values = zip(*kept, strict=True)
        return {
            "logits_btv": model.head(model.decoder.normalise(x_btd)),
            "keys_lbsgk": tf.stack(keys),
            "values_lbsge": tf.stack(values),
        }


def _layer(
    layer: DecoderLayer,
    x_btd: tf.Tensor,
    own: tuple[tf.Tensor, tf.Tensor],
    mask_bhts: tf.Tensor,
    rotation: Rotation | None,
    cross: Any,
) -> tuple[tf.Tensor, ...]:
    """Runs the layer on the next tokens: its output, and all keys and values of its
    self-attention.
    """
    kept: list[tf.Tensor] = []

    def attend(y_btd: tf.Tensor) -> Any:
        query_bthk, *new = layer.self_attention.project(y_btd, rotation)
        key_bsgk, value_bsge = (tf.concat(pair, axis=1) for pair in zip(own, new, strict=True))
        kept.extend((key_bsgk, value_bsge))
        return layer.self_attention.attend(query_bthk, key_bsgk, value_bsge, mask_bhts)

    def attend_to_memory(y_btd: tf.Tensor) -> Any:
        return layer.cross_attention.attend(layer.cross_attention.queries(y_btd), *cross)

    x_btd = layer.run(x_btd, attend, None if cross is None else attend_to_memory)
    return x_btd, *kept
