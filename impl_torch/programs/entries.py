"""The functions of a model that is exported: the whole of it, and for decoding its encoder and a
step, whose cache is an argument and a result.
"""

from typing import Any

import torch
from torch import Tensor, nn

from reference_numpy.scores import Scores

from .. import mask
from ..cache import KeyValues
from ..inputs import embed, encoding_table
from ..layers import Layer
from ..positional_encoding import token_positions
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Heads, Text

__all__ = ["Encode", "Forward", "Step"]

Named = dict[str, Tensor]


class Entry(nn.Module):
    """A function of a model, which takes the ids and masks that its stacks read, and returns its
    results by name.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model


class Forward(Entry):
    """The whole model: of a decoder `logits_btv`; of an encoder-only model `hidden_bsd`, and what
    its heads give: `pooled_bd`, `classes_bc`, `logits_bsv`.
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
    """The encoder, and the keys and values of its memory for every layer of the decoder:
    `memory_bsd`, `cross_keys_lbsgk`, `cross_values_lbsge`.
    """

    def forward(self, source: Tensor, source_mask_bs: Tensor) -> Named:
        memory_bsd = self.model.encode(Text(source, source_mask_bs))
        layers = self.model.decoder.layers
        pairs = [layer.cross_attention.keys_and_values(memory_bsd) for layer in layers]
        keys, values = zip(*pairs, strict=True)
        return {
            "memory_bsd": memory_bsd,
            "cross_keys_lbsgk": torch.stack(keys),
            "cross_values_lbsge": torch.stack(values),
        }


class Step(Entry):
    """The next t tokens of a target after p that were read: `logits_btv`, and the keys and values
    of all of them, which the next step takes.

    It is `cache.decode_step` without state. target_mask_bs: of all `p + t` tokens. keys_lbsgk,
    values_lbsge: of every layer, p long; p is 0 at the start. cross_keys_lbsgk, cross_values_lbsge:
    as `Encode` gives them. A layer with a window keeps all keys, and its mask hides the far ones.
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
        read, length = keys_lbsgk.shape[2], target.shape[1]
        end = read + length
        position_bt = token_positions(target_mask_bs, config.position_start)[:, read:]
        encoding_pd = encoding_table(config, end, keys_lbsgk.dtype, target.device)
        x_btd = embed(model, "target", target, position_bt, encoding_pd=encoding_pd)
        causal_bhts = mask.causal_mask(length, end, target.device)
        own_bhts = mask.combine_masks(mask.padding_mask(target_mask_bs), causal_bhts)
        masks = {0: own_bhts}
        for window in {layer.self_attention.scores.window for layer in model.decoder.layers} - {0}:
            window_bhts = mask.window_mask(length, end, window, target.device)
            masks[window] = mask.combine_masks(own_bhts, window_bhts)
        cross_bhts = mask.padding_mask(source_mask_bs)
        kept: list[KeyValues] = []

        def through(layer: Layer, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
            own = layer.self_attention
            scores = Scores(own.scores.scale, own.scores.cap)  # the mask hides the rest

            def attend(y_btd: Tensor) -> Tensor:
                query_bthk, key_btgk, value_btge = own.project(y_btd, y_btd, rotation)
                past = KeyValues(keys_lbsgk[index], values_lbsge[index])
                kept.append(past.update(key_btgk, value_btge))
                heads = Heads(query_bthk, kept[-1].key_bsgk, kept[-1].value_bsge)
                return own.attend(heads, masks[own.scores.window], scores=scores)

            if cross_keys_lbsgk is None or cross_values_lbsge is None:
                return layer.run(x_btd, attend)
            key_bsgk, value_bsge = cross_keys_lbsgk[index], cross_values_lbsge[index]

            def attend_to_memory(y_btd: Tensor) -> Tensor:
                heads = Heads(layer.cross_attention.queries(y_btd), key_bsgk, value_bsge)
                return layer.cross_attention.attend(heads, cross_bhts)

            return layer.run(x_btd, attend, attend_to_memory)

        x_btd = model.decoder.walk(x_btd, through, position_bt)
        return {
            "logits_btv": model.logits(x_btd),
            "keys_lbsgk": torch.stack([read.key_bsgk for read in kept]),
            "values_lbsge": torch.stack([read.value_bsge for read in kept]),
        }
