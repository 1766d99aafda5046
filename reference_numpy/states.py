"""The vectors between a model's layers, and its attention weights."""

from typing import Any

import numpy as np

from . import attention, checks, inputs, layers, mask, stacks
from .arrays import Array, Mask, Tree
from .config import TransformerConfig as Config

__all__ = ["states"]


def states(
    parameters: Tree,
    config: Config,
    source: Array | None = None,
    target: Array | None = None,
    source_mask_bs: Mask = None,
    target_mask_bt: Mask = None,
    segment_bs: Array | None = None,
) -> dict[str, Any]:
    """The vectors before the first and after every layer, and the attention weights of every layer.

    Both stacks give `hidden_lbtd` and `self_attention_lbhts`, and a decoder with an encoder also
    `cross_attention_lbhts`; the axis l is the layer. There is one hidden state more than layers;
    the last is taken after the final norm, if the config has one. Nothing is dropped. Arguments and
    errors match `transformer.transformer`. Each stack that the config has needs its tokens.
    Source: the outputs `hidden_states` and `attentions` of the library transformers.
    """
    of_source = {"source_mask_bs": source_mask_bs, "segment_bs": segment_bs}
    checks.check_source_given(config.encoder_layers, source, **of_source)
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    result: dict[str, Any] = {}
    memory_bsd, cross_mask_bhts = None, None
    if source is not None:
        x_bsd, self_mask_bhts, position_bs = _inputs(
            parameters, config, "source", source, source_mask_bs, segment_bs
        )
        given = self_mask_bhts, position_bs, False
        result["encoder"] = _stack(parameters["encoder"], config, x_bsd, *given)
        memory_bsd, cross_mask_bhts = result["encoder"]["hidden_lbtd"][-1], self_mask_bhts
    if target is not None:
        x_btd, self_mask_bhts, position_bt = _inputs(
            parameters, config, "target", target, target_mask_bt, None
        )
        of_memory = memory_bsd, cross_mask_bhts
        given = self_mask_bhts, position_bt, True
        result["decoder"] = _stack(parameters["decoder"], config, x_btd, *given, *of_memory)
    return result


def _inputs(
    parameters: Tree, config: Config, side: str, token: Array, mask_bt: Mask, segment_bt: Any
) -> tuple[Array, Array, Array]:
    """The input of the first layer, the mask of its self-attention, and the positions."""
    mask_bt, position_bt = inputs.masked_positions(config, side, token, mask_bt)
    x_btd = inputs.embed(parameters, config, side, token, position_bt, segment_bt)
    return x_btd, mask.padding_mask(mask_bt), position_bt


def _stack(parameters: Tree, config: Config, x_btd: Array, *given: Any) -> dict[str, Array]:
    """The states of `stacks.encoder` or `stacks.decoder`. given: as `_layer`."""
    hidden, weights = [x_btd], list[dict[str, Array]]()
    for index in range(len(parameters["layers"])):
        layer = parameters["layers"][str(index)]
        x_btd, layer_weights = _layer(layer, config, index, x_btd, *given)
        hidden.append(x_btd)
        weights.append(layer_weights)
    hidden[-1] = stacks.final_norm(parameters, config, x_btd)
    maps = {f"{name}_lbhts": np.stack([layer[name] for layer in weights]) for name in weights[0]}
    return {"hidden_lbtd": np.stack(hidden), **maps}


def _layer(
    parameters: Tree,
    config: Config,
    index: int,
    x_btd: Array,
    self_mask_bhts: Array,
    position_bt: Array,
    causal: bool,
    memory_bsd: Any = None,
    cross_mask_bhts: Mask = None,
) -> tuple[Array, dict[str, Array]]:
    """The layer's output, and the weights of each of its attentions."""
    weights: dict[str, Array] = {}

    def attend(y_btd: Array) -> Array:
        y_btd, weights["self_attention"] = attention.multi_head_attention(
            parameters["self_attention"],
            y_btd,
            y_btd,
            self_mask_bhts,
            None,
            causal,
            True,
            config=config,
            layer=index,
            position_bt=position_bt,
        )
        return y_btd

    def attend_to_memory(y_btd: Array) -> Array:
        y_btd, weights["cross_attention"] = attention.multi_head_attention(
            parameters["cross_attention"],
            y_btd,
            memory_bsd,
            cross_mask_bhts,
            return_weights=True,
            config=config,
            layer=None,
        )
        return y_btd

    crossing = None if memory_bsd is None else attend_to_memory
    return layers.run(parameters, config, x_btd, attend, crossing), weights
