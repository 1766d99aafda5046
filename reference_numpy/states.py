"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import attention, checks, feed_forward, inputs, layers, mask, stacks
from .config import TransformerConfig

__all__ = ["states"]

Tree = Mapping[str, Any]


def states(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray | None = None,
    target: np.ndarray | None = None,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
) -> dict[str, Any]:
    """The vectors before the first layer and after every layer, and the attention weights of every layer, in evaluation.

    encoder: hidden_lbtd and self_attention_lbhts; decoder: the same and, where there is an encoder, cross_attention_lbhts; l layer, t
    query. The last of a stack's vectors are those after its final norm, where the config has one; there is one more of them than layers.
    Arguments and errors as `transformer.transformer`; each stack that the config has needs its tokens.
    Source: the outputs `hidden_states` and `attentions` of the library transformers.
    """
    checks.check_source_given(
        config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
    )
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    result, memory_bsd, cross_mask_bhts = {}, None, None
    if source is not None:
        x_bsd, self_mask_bhts = _inputs(
            parameters, config, "source", source, source_mask_bs, segment_bs
        )
        result["encoder"], cross_mask_bhts = (
            _stack(parameters["encoder"], config, x_bsd, None, self_mask_bhts, None, False),
            self_mask_bhts,
        )
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, self_mask_bhts = _inputs(parameters, config, "target", target, target_mask_bt, None)
        result["decoder"] = _stack(
            parameters["decoder"], config, x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, True
        )
    return result


def _inputs(
    parameters: Tree,
    config: TransformerConfig,
    side: str,
    token: np.ndarray,
    mask_bt: np.ndarray | None,
    segment_bt: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """What the first layer is given, and the mask of its self-attention."""
    mask_bt, position_bt = inputs.masked_positions(config, side, token, mask_bt)
    return inputs.embed(
        parameters, config, side, token, position_bt, segment_bt
    ), mask.padding_mask(mask_bt)


def _stack(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, memory_bsd: np.ndarray | None,
    self_mask_bhts: np.ndarray, cross_mask_bhts: np.ndarray | None, causal: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """`stacks.encoder` or `stacks.decoder`, and what it computes on the way."""
    hidden = [x_btd]
    weights: dict[str, list[np.ndarray]] = {"self_attention": [], "cross_attention": []}
    for index in range(len(parameters["layers"])):
        layer = parameters["layers"][str(index)]
        y_btd = layers.residual_in(layer, config, "self_attention", x_btd)
        y_btd, weights_bhts = attention.multi_head_attention(
            layer["self_attention"],
            y_btd,
            y_btd,
            self_mask_bhts,
            causal=causal,
            return_weights=True,
        )
        weights["self_attention"].append(weights_bhts)
        x_btd = layers.residual_out(layer, config, "self_attention", x_btd, y_btd, {})
        if memory_bsd is not None:
            y_btd = layers.residual_in(layer, config, "cross_attention", x_btd)
            y_btd, weights_bhts = attention.multi_head_attention(
                layer["cross_attention"], y_btd, memory_bsd, cross_mask_bhts, return_weights=True
            )
            weights["cross_attention"].append(weights_bhts)
            x_btd = layers.residual_out(layer, config, "cross_attention", x_btd, y_btd, {})
        y_btd = layers.residual_in(layer, config, "feed_forward", x_btd)
        y_btd = feed_forward.feed_forward(layer["feed_forward"], y_btd, config.activation)
        x_btd = layers.residual_out(layer, config, "feed_forward", x_btd, y_btd, {})
        hidden.append(x_btd)
    hidden[-1] = stacks.final_norm(parameters, config, x_btd)
    return {"hidden_lbtd": np.stack(hidden)} | {
        f"{name}_lbhts": np.stack(maps) for name, maps in weights.items() if maps
    }
