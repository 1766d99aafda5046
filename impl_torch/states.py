"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from typing import Any, Protocol

import torch
from torch import Tensor

from reference_numpy import TransformerConfig, checks

from . import mask
from .inputs import embed, masked_positions
from .rotary import Rotation
from .stacks import Decoder, Encoder

__all__ = ["states"]


class Model(Protocol):
    """A `Transformer`, which has these states as a method."""

    encoder: Encoder
    decoder: Decoder
    training: bool

    @property
    def config(self) -> TransformerConfig: ...

    def check_ids(
        self, source: Tensor | None, target: Tensor | None, segment_bs: Tensor | None
    ) -> None: ...


def states(
    model: Model,
    source: Tensor | None = None,
    target: Tensor | None = None,
    source_mask_bs: Tensor | None = None,
    target_mask_bt: Tensor | None = None,
    segment_bs: Tensor | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Computes `Transformer.states`. The attention weights exist here; the kernels of `forward`
    never hold them.
    """
    config = model.config
    checks.check_source_given(
        config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
    )
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    if model.training:
        raise ValueError("states need a model in evaluation; got one in training")
    model.check_ids(source, target, segment_bs)
    result, memory_bsd, cross_mask_bhts = {}, None, None
    if source is not None:
        x_bsd, cross_mask_bhts, position_bs = _inputs(
            model, "source", source, source_mask_bs, segment_bs
        )
        result["encoder"] = _stack(model.encoder, x_bsd, cross_mask_bhts, position_bs, None, None)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, self_mask_bhts, position_bt = _inputs(model, "target", target, target_mask_bt, None)
        given = self_mask_bhts, position_bt, memory_bsd, cross_mask_bhts
        result["decoder"] = _stack(model.decoder, x_btd, *given)
    return result


def _inputs(
    model: Model, side: str, token: Tensor, mask_bt: Tensor | None, segment_bt: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Computes the input of the first layer, the mask of its self-attention, and the positions."""
    mask_bt, position_bt = masked_positions(model.config, side, token, mask_bt)
    x_btd = embed(model, side, token, position_bt, segment_bt)
    return x_btd, None if mask_bt is None else mask.padding_mask(mask_bt), position_bt


def _stack(
    stack: Encoder | Decoder,
    x_btd: Tensor,
    self_mask_bhts: Tensor | None,
    position_bt: Tensor | None,
    memory_bsd: Tensor | None,
    cross_mask_bhts: Tensor | None,
) -> dict[str, Tensor]:
    """Runs a stack and records the vectors and attention weights of its layers."""
    hidden = [x_btd]
    weights: dict[str, list[Tensor]] = {"self_attention": [], "cross_attention": []}

    def through(layer: Any, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
        def attend(y_btd: Tensor) -> Tensor:
            heads = layer.self_attention.project(y_btd, y_btd, rotation)
            weights["self_attention"].append(layer.self_attention.weights(heads, self_mask_bhts))
            return layer.self_attention.attend(heads, self_mask_bhts)

        def attend_to_memory(y_btd: Tensor) -> Tensor:
            heads = layer.cross_attention.project(y_btd, memory_bsd)
            weights["cross_attention"].append(layer.cross_attention.weights(heads, cross_mask_bhts))
            return layer.cross_attention.attend(heads, cross_mask_bhts)

        hidden.append(layer.run(x_btd, attend, None if memory_bsd is None else attend_to_memory))
        return hidden[-1]

    hidden[-1] = stack.walk(x_btd, through, position_bt)
    return {"hidden_lbtd": torch.stack(hidden)} | {
        f"{name}_lbhts": torch.stack(maps) for name, maps in weights.items() if maps
    }
