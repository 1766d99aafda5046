"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from typing import Any, Protocol

import torch
from torch import Tensor

from reference_numpy import checks

from . import mask
from .inputs import Embedded, embed, masked_positions
from .layers import Layer
from .rotary import Rotation
from .stacks import Decoder, Encoder, Stack
from .values import Text

__all__ = ["states"]


class Model(Embedded, Protocol):
    """A `Transformer`, which has these states as a method."""

    encoder: Encoder
    decoder: Decoder
    training: bool

    def check_ids(self, source: Text | None, target: Text | None) -> None: ...


def states(
    model: Model, source: Text | Tensor | None = None, target: Text | Tensor | None = None
) -> dict[str, dict[str, Tensor]]:
    """Computes `Transformer.states`. The attention weights exist here; the kernels of `forward`
    never hold them.
    """
    checks.check_source_given(model.config.encoder_layers, source)
    checks.check_target_given(model.config.decoder_layers, target)
    if model.training:
        raise ValueError("states need a model in evaluation; got one in training")
    source, target = Text.of(source), Text.of(target)
    model.check_ids(source, target)
    result, memory_bsd, cross_mask_bhts = {}, None, None
    if source is not None:
        x_bsd, cross_mask_bhts, position_bs = _inputs(model, "source", source)
        given = x_bsd, position_bs, cross_mask_bhts
        result["encoder"] = _recorded(model.encoder, *given)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, self_mask_bhts, position_bt = _inputs(model, "target", target)
        given = x_btd, position_bt, self_mask_bhts
        result["decoder"] = _recorded(model.decoder, *given, memory_bsd, cross_mask_bhts)
    return result


def _inputs(model: Model, side: str, text: Text) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Computes the input of the first layer, the mask of its self-attention, and the positions."""
    mask_bt, position_bt = masked_positions(model.config, side, text.ids, text.mask)
    x_btd = embed(model, side, text.ids, position_bt, text.segment)
    return x_btd, mask.padding_mask(mask_bt), position_bt


def _recorded(
    stack: Stack,
    x_btd: Tensor,
    position_bt: Tensor | None,
    self_mask_bhts: Tensor | None,
    memory_bsd: Any = None,
    cross_mask_bhts: Tensor | None = None,
) -> dict[str, Tensor]:
    """Runs a stack and records the vectors and attention weights of its layers."""
    hidden, own, cross = [x_btd], [], []

    def through(layer: Layer, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
        def attend(y_btd: Tensor) -> Tensor:
            heads = layer.self_attention.project(y_btd, y_btd, rotation)
            own.append(layer.self_attention.weights(heads, self_mask_bhts))
            return layer.self_attention.attend(heads, self_mask_bhts)

        def attend_to_memory(y_btd: Tensor) -> Tensor:
            heads = layer.cross_attention.project(y_btd, memory_bsd)
            cross.append(layer.cross_attention.weights(heads, cross_mask_bhts))
            return layer.cross_attention.attend(heads, cross_mask_bhts)

        hidden.append(layer.run(x_btd, attend, None if memory_bsd is None else attend_to_memory))
        return hidden[-1]

    hidden[-1] = stack.walk(x_btd, through, position_bt)
    found = {"hidden_lbtd": hidden, "self_attention_lbhts": own, "cross_attention_lbhts": cross}
    return {name: torch.stack(layers) for name, layers in found.items() if layers}
