"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from typing import Any, Protocol

import torch
from torch import Tensor

from reference_numpy import TransformerConfig, checks

from . import mask
from .inputs import embed, masked_positions
from .rotary import Rotation, rotations
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
        result["encoder"] = _stack(
            model.encoder, x_bsd, False, cross_mask_bhts, position_bs, None, None
        )
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, self_mask_bhts, position_bt = _inputs(model, "target", target, target_mask_bt, None)
        given = self_mask_bhts, position_bt, memory_bsd, cross_mask_bhts
        result["decoder"] = _stack(model.decoder, x_btd, True, *given)
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
    causal: bool,
    self_mask_bhts: Tensor | None,
    position_bt: Tensor | None,
    memory_bsd: Tensor | None,
    cross_mask_bhts: Tensor | None,
) -> dict[str, Tensor]:
    """Runs a stack and records the vectors and attention weights of its layers."""
    hidden = [x_btd]
    weights: dict[str, list[Tensor]] = {"self_attention": [], "cross_attention": []}

    def recorded(name: str, attended: Any) -> Tensor:
        output_btd, weights_bhts = attended
        weights[name].append(weights_bhts)
        return output_btd

    def run(layer: Any, x_btd: Tensor, rotation: Rotation | None) -> Tensor:
        def attend(y_btd: Tensor) -> Tensor:
            attended = layer.self_attention(
                y_btd, y_btd, self_mask_bhts, None, causal, True, rotation=rotation
            )
            return recorded("self_attention", attended)

        def attend_to_memory(y_btd: Tensor) -> Tensor:
            attended = layer.cross_attention(
                y_btd, memory_bsd, cross_mask_bhts, return_weights=True
            )
            return recorded("cross_attention", attended)

        return layer.run(x_btd, attend, None if memory_bsd is None else attend_to_memory)

    turned = rotations(stack.config, len(stack.layers), x_btd, position_bt)
    for layer, rotation in zip(stack.layers, turned, strict=True):
        hidden.append(run(layer, hidden[-1], rotation))
    hidden[-1] = stack.final_norm(hidden[-1])
    return {"hidden_lbtd": torch.stack(hidden)} | {
        f"{name}_lbhts": torch.stack(maps) for name, maps in weights.items() if maps
    }
