"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from typing import Any

import torch
from torch import Tensor

from reference_numpy import checks

from . import mask
from .inputs import embed, masked_positions
from .layers import residual_in, residual_out

__all__ = ["states"]


def states(
    model: Any,
    source: Tensor | None = None,
    target: Tensor | None = None,
    source_mask_bs: Tensor | None = None,
    target_mask_bt: Tensor | None = None,
    segment_bs: Tensor | None = None,
) -> dict[str, dict[str, Tensor]]:
    """`Transformer.states`. The attention weights exist, where `forward` leaves them to a kernel that never holds them."""
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
        x_bsd, cross_mask_bhts = _inputs(model, "source", source, source_mask_bs, segment_bs)
        result["encoder"] = _stack(model.encoder, x_bsd, None, cross_mask_bhts, None, False)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, self_mask_bhts = _inputs(model, "target", target, target_mask_bt, None)
        result["decoder"] = _stack(
            model.decoder, x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, True
        )
    return result


def _inputs(
    model: Any, side: str, token: Tensor, mask_bt: Tensor | None, segment_bt: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What the first layer is given, and the mask of its self-attention."""
    mask_bt, position_bt = masked_positions(model.config, side, token, mask_bt)
    return embed(
        model, side, token, position_bt, segment_bt
    ), None if mask_bt is None else mask.padding_mask(mask_bt)


def _stack(
    stack: Any,
    x_btd: Tensor,
    memory_bsd: Tensor | None,
    self_mask_bhts: Tensor | None,
    cross_mask_bhts: Tensor | None,
    causal: bool,
) -> dict[str, Tensor]:
    """What a stack computes, and what it computes on the way."""
    hidden = [x_btd]
    weights: dict[str, list[Tensor]] = {"self_attention": [], "cross_attention": []}
    for layer in stack.layers:
        y_btd = residual_in(layer, "self_attention", x_btd)
        y_btd, weights_bhts = layer.self_attention(
            y_btd, y_btd, self_mask_bhts, causal=causal, return_weights=True
        )
        weights["self_attention"].append(weights_bhts)
        x_btd = residual_out(layer, "self_attention", x_btd, y_btd, {})
        if memory_bsd is not None:
            y_btd = residual_in(layer, "cross_attention", x_btd)
            y_btd, weights_bhts = layer.cross_attention(
                y_btd, memory_bsd, cross_mask_bhts, return_weights=True
            )
            weights["cross_attention"].append(weights_bhts)
            x_btd = residual_out(layer, "cross_attention", x_btd, y_btd, {})
        y_btd = layer.feed_forward(residual_in(layer, "feed_forward", x_btd))
        x_btd = residual_out(layer, "feed_forward", x_btd, y_btd, {})
        hidden.append(x_btd)
    hidden[-1] = stack.final_norm(x_btd)
    return {"hidden_lbtd": torch.stack(hidden)} | {
        f"{name}_lbhts": torch.stack(maps) for name, maps in weights.items() if maps
    }
