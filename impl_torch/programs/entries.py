"""The functions of a model that is exported: the whole of it, and for decoding its encoder and a
step, whose cache is an argument and a result.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .. import mask, rotary
from ..inputs import embed
from ..layers import DecoderLayer
from ..positional_encoding import positional_encoding, token_positions
from ..rotary import Rotation
from ..transformer import Transformer

__all__ = ["Encode", "Forward", "Step"]

Named = dict[str, Tensor]


class Forward(nn.Module):
    """The whole model: of a decoder `logits_btv`; of an encoder-only model `hidden_bsd`, and what
    its heads give: `pooled_bd`, `classes_bc`, `logits_bsv`.

    Every function takes the ids and masks that its stacks read, and returns its results by name.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        source: Any = None,
        target: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        target_mask_bt: Tensor | None = None,
        segment_bs: Tensor | None = None,
    ) -> Named:
        model, config = self.model, self.model.config
        if config.decoder_layers:
            logits_btv = model(source, target, source_mask_bs, target_mask_bt)
            return {"logits_btv": logits_btv}
        found = {"hidden_bsd": model.encode(source, source_mask_bs, segment_bs=segment_bs)}
        if config.pooler:
            found["pooled_bd"] = model.pooler(found["hidden_bsd"])
        if config.classes:
            found["classes_bc"] = model.classifier(found["pooled_bd"])
        if config.masked_language_head:
            found["logits_bsv"] = model.masked_language_head(found["hidden_bsd"])
        return found


class Encode(nn.Module):
    """The encoder, and the keys and values of its memory for every layer of the decoder:
    `memory_bsd`, `cross_keys_lbsgk`, `cross_values_lbsge`.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_mask_bs: Tensor) -> Named:
        memory_bsd, layers = self.model.encode(source, source_mask_bs), self.model.decoder.layers
        pairs = [layer.cross_attention.keys_and_values(memory_bsd) for layer in layers]
        keys, values = zip(*pairs, strict=True)
        return {
            "memory_bsd": memory_bsd,
            "cross_keys_lbsgk": torch.stack(keys),
            "cross_values_lbsge": torch.stack(values),
        }


class Step(nn.Module):
    """The next t tokens of a target after p that were read: `logits_btv`, and the keys and values
    of all of them, which the next step takes.

    It is `cache.decode_step` without state. target_mask_bs: of all `p + t` tokens. keys_lbsgk,
    values_lbsge: of every layer, p long; p is 0 at the start. cross_keys_lbsgk, cross_values_lbsge:
    as `Encode` gives them. A layer with a window keeps all keys, and its mask hides the far ones.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

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
        encoding_pd = None
        if config.positions == "sinusoidal":
            place_p = torch.arange(end, device=target.device)
            given = config.model_width, keys_lbsgk.dtype, config.sinusoid_layout
            encoding_pd = positional_encoding(place_p, *given)
        x_btd = embed(model, "target", target, position_bt, encoding_pd=encoding_pd)
        kinds = [config.layer_kind(layer) for layer in range(config.decoder_layers)]
        turned = rotary.by_layer(
            config,
            len(kinds),
            lambda kind: rotary.rotation(config, kind, position_bt, x_btd.dtype),
        )
        own_bhts = mask.padding_mask(target_mask_bs) & mask.causal_mask(length, end, target.device)
        masks = {
            window: own_bhts & mask.window_mask(length, end, window, target.device)
            if window
            else own_bhts
            for window in {kind.window for kind in kinds}
        }
        cross_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
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
            "logits_btv": model.logits(model.decoder.final_norm(x_btd)),
            "keys_lbsgk": torch.stack(keys),
            "values_lbsge": torch.stack(values),
        }


def _layer(
    layer: DecoderLayer,
    x_btd: Tensor,
    own: tuple[Tensor, Tensor],
    mask_bhts: Tensor,
    rotation: Rotation | None,
    cross: Any,
) -> tuple[Tensor, ...]:
    """Runs the layer on the next tokens: its output, and all keys and values of its
    self-attention.
    """
    kept: list[Tensor] = []

    def attend(y_btd: Tensor) -> Any:
        query_bthk, *new = layer.self_attention.project(y_btd, rotation)
        key_bsgk, value_bsge = (torch.cat(pair, dim=1) for pair in zip(own, new, strict=True))
        kept.extend((key_bsgk, value_bsge))
        return layer.self_attention.attend(query_bthk, key_bsgk, value_bsge, mask_bhts)

    def attend_to_memory(y_btd: Tensor) -> Any:
        return layer.cross_attention.attend(layer.cross_attention.queries(y_btd), *cross)

    x_btd = layer.run(x_btd, attend, None if cross is None else attend_to_memory)
    return x_btd, *kept
