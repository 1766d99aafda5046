"""Intermediate results of a model: the vectors between its layers, and its attention weights."""

from typing import Any, Protocol

import torch
from torch import Tensor

from reference_numpy import checks

from . import mask
from .attention import MultiHeadAttention
from .inputs import Embedded
from .layers import Layer
from .rotary import Rotation
from .stacks import Decoder, Encoder, Stack
from .values import Heads, Text

__all__ = ["states"]


class Model(Embedded, Protocol):
    """Interface of `Transformer` used here."""

    encoder: Encoder
    decoder: Decoder
    training: bool

    def check_ids(self, source: Text | None, target: Text | None) -> None: ...

    def embed(self, side: str, text: Text) -> tuple[Tensor, Tensor | None, Tensor | None]: ...


def states(
    model: Model, source: Text | Tensor | None = None, target: Text | Tensor | None = None
) -> dict[str, dict[str, Tensor]]:
    """Computes `Transformer.states`; `forward` never stores the attention weights."""
    checks.check_source_given(model.config.encoder_layers, source)
    checks.check_target_given(model.config.decoder_layers, target)
    if model.training:
        raise ValueError("states need eval mode; got a model in training mode")
    source, target = Text.of(source), Text.of(target)
    model.check_ids(source, target)
    result, memory_bsd, memory_mask_bhts = {}, None, None
    if source is not None:
        x_bsd, mask_bs, position_bs = model.embed("source", source)
        memory_mask_bhts = mask.padding_mask(mask_bs)
        result["encoder"] = _recorded(model.encoder, x_bsd, position_bs, memory_mask_bhts)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, mask_bt, position_bt = model.embed("target", target)
        self_mask_bhts = mask.padding_mask(mask_bt)
        result["decoder"] = _recorded(
            model.decoder, x_btd, position_bt, self_mask_bhts, memory_bsd, memory_mask_bhts
        )
    return result


def _recorded(
    stack: Stack,
    x_btd: Tensor,
    position_bt: Tensor | None,
    self_mask_bhts: Tensor | None,
    memory_bsd: Any = None,
    memory_mask_bhts: Tensor | None = None,
) -> dict[str, Tensor]:
    """Runs a stack and records the vectors and attention weights of its layers."""
    hidden: list[Tensor] = [x_btd]
    own: list[Tensor] = []
    cross: list[Tensor] = []

    def attended(
        attention: MultiHeadAttention, heads: Heads, mask_bhts: Tensor | None, found: list[Tensor]
    ) -> Tensor:
        weights_bhts, mean_bthe = attention.weights(heads, mask_bhts)
        found.append(weights_bhts)
        return attention.output(mean_bthe.flatten(-2))

    def through(layer: Layer, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
        def attend(y_btd: Tensor) -> Tensor:
            heads = layer.self_attention.project(y_btd, y_btd, rotation)
            return attended(layer.self_attention, heads, self_mask_bhts, own)

        def attend_to_memory(y_btd: Tensor) -> Tensor:
            heads = layer.cross_attention.project(y_btd, memory_bsd)
            return attended(layer.cross_attention, heads, memory_mask_bhts, cross)

        crossing = None if memory_bsd is None else attend_to_memory
        hidden.append(layer.run(x_btd, attend, crossing))
        return hidden[-1]

    hidden[-1] = stack.walk(x_btd, through, position_bt)
    found = {"hidden_lbtd": hidden, "self_attention_lbhts": own, "cross_attention_lbhts": cross}
    return {name: torch.stack(layers) for name, layers in found.items() if layers}
