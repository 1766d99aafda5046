"""Entry points of an exported model: the whole model, its encoder, and a decoding step.

The cache of the step is an argument and a result.
"""

from typing import Any

import torch
from torch import Tensor, nn

from reference_numpy.scores import Scores

from .. import mask
from ..cache import KeyValues, decoder_layer_step
from ..inputs import embed, encoding_table
from ..layers import Layer
from ..positional_encoding import token_positions
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Text

__all__ = ["Encode", "Forward", "Step"]

Named = dict[str, Tensor]


class Entry(nn.Module):
    """An entry point: takes ids and masks, returns its results by name."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model


class Forward(Entry):
    """The whole model: `logits_btv` of a decoder; of an encoder-only model `hidden_bsd` and the
    outputs of its heads: `pooled_bd`, `classes_bc`, `logits_bsv`.
    """

    def forward(
        self,
        source: Any = None,
        target: Any = None,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        segment_bs: Tensor | None = None,
    ) -> Named:
        model, config = self.model, self.model.config
        if config.decoder_layers:
            read = None if source is None else Text(source, source_mask_bs)
            return {"logits_btv": model(read, Text(target, target_mask_bt))}
        found = {"hidden_bsd": model.encode(Text(source, source_mask_bs, segment_bs))}
        if config.pooler:
            found["pooled_bd"] = model.pooler(found["hidden_bsd"])
        if config.classes:
            found["classes_bc"] = model.classifier(found["pooled_bd"])
        if config.masked_language_head:
            found["logits_bsv"] = model.masked_language_head(found["hidden_bsd"])
        return found


class Encode(Entry):
    """The encoder, with the keys and values of its memory for every decoder layer: `memory_bsd`,
    `cross_keys_lbsgk`, `cross_values_lbsge`.
    """

    def forward(self, source: Tensor, source_mask_bs: Tensor) -> Named:
        memory_bsd = self.model.encode(Text(source, source_mask_bs))
        layers = self.model.decoder.layers
        pairs = [layer.cross_attention.keys_and_values(memory_bsd) for layer in layers]
        keys, values = map(torch.stack, zip(*pairs, strict=True))
        of_memory = {"cross_keys_lbsgk": keys, "cross_values_lbsge": values}
        return {"memory_bsd": memory_bsd, **of_memory}


class Step(Entry):
    """Reads the next t tokens of a target after p: `logits_btv`, and all keys and values so far.

    A stateless `cache.decode_step`. target_mask_bs: of all `p + t` tokens. keys_lbsgk,
    values_lbsge: of every layer, p long, with p = 0 at the start. cross_keys_lbsgk,
    cross_values_lbsge: from `Encode`. A layer with a window keeps all keys, and its mask hides the
    far ones.
    """

    def forward(
        self,
        target: Tensor,
        target_mask_bs: Tensor,
        source_mask_bs: Tensor | None = None,
        *,
        keys_lbsgk: Tensor,
        values_lbsge: Tensor,
        cross_keys_lbsgk: Tensor | None = None,
        cross_values_lbsge: Tensor | None = None,
    ) -> Named:
        model, config = self.model, self.model.config
        read, end = keys_lbsgk.shape[2], keys_lbsgk.shape[2] + target.shape[1]
        position_bt = token_positions(target_mask_bs, config.position_start)[:, read:]
        encoding_pd = encoding_table(config, end, keys_lbsgk.dtype, target.device)
        x_btd = embed(model, "target", target, position_bt, encoding_pd=encoding_pd)
        causal_bhts = mask.causal_mask(target.shape[1], end, target.device)
        masks: dict[int, Any] = {}
        masks[0] = mask.combine_masks(mask.padding_mask(target_mask_bs), causal_bhts)
        for window in {layer.self_attention.scores.window for layer in model.decoder.layers} - {0}:
            window_bhts = mask.window_mask(target.shape[1], end, window, target.device)
            masks[window] = mask.combine_masks(masks[0], window_bhts)
        cross_bhts = mask.padding_mask(source_mask_bs)
        kept: list[KeyValues] = []

        def through(layer: Layer, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
            own, past = layer.self_attention.scores, {}
            past["self_attention"] = KeyValues(keys_lbsgk[index], values_lbsge[index])
            if cross_keys_lbsgk is not None and cross_values_lbsge is not None:
                memory = KeyValues(cross_keys_lbsgk[index], cross_values_lbsge[index])
                past["cross_attention"] = memory
            scores = Scores(own.scale, own.cap)  # the mask includes window and causality
            x_btd, after = decoder_layer_step(
                layer, x_btd, past, scores, masks[own.window], cross_bhts, rotation
            )
            kept.append(after["self_attention"])
            return x_btd

        x_btd = model.decoder.walk(x_btd, through, position_bt)
        keys, values = map(torch.stack, zip(*kept, strict=True))
        return {"logits_btv": model.logits(x_btd), "keys_lbsgk": keys, "values_lbsge": values}
