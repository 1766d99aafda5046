"""The vectors between a model's layers, and its attention weights."""

from functools import partial
from typing import Any

import numpy as np

from . import attention, inputs, layers, mask, stacks, transformer
from .arrays import Array, Mask, Tree
from .config import TransformerConfig as Config
from .rotary import Rotation
from .scores import Scores
from .values import Memory, Text

__all__ = ["states"]


def states(
    parameters: Tree,
    config: Config,
    source: Text | Array | None = None,
    target: Text | Array | None = None,
) -> dict[str, dict[str, Array]]:
    """The vectors before the first and after every layer, and the attention weights of every layer.

    Both stacks give `hidden_lbtd` and `self_attention_lbhts`, and a decoder with an encoder also
    `cross_attention_lbhts`; the axis l is the layer. There is one hidden state more than layers;
    the last is taken after the final norm, if the config has one. Nothing is dropped. Arguments and
    errors match `transformer.transformer`. Each stack that the config has needs its tokens.
    Source: the outputs `hidden_states` and `attentions` of the library transformers.
    """
    source, target = transformer.sides(config, source, target)
    result: dict[str, dict[str, Array]] = {}
    memory = None
    if source is not None:
        given = _inputs(parameters, config, "source", source)
        result["encoder"] = _stack(parameters["encoder"], config, *given, memory)
        memory = Memory(result["encoder"]["hidden_lbtd"][-1], given[1])
    if target is not None:
        given = _inputs(parameters, config, "target", target)
        result["decoder"] = _stack(parameters["decoder"], config, *given, memory, causal=True)
    return result


def _inputs(parameters: Tree, config: Config, side: str, text: Text) -> tuple[Array, Array, Array]:
    """The input of the first layer, the mask of its self-attention, and the positions."""
    mask_bt, position_bt = inputs.masked_positions(config, side, text.ids, text.mask_bt)
    x_btd = inputs.embed(parameters, config, side, text.ids, position_bt, text.segment_bt)
    return x_btd, mask.padding_mask(mask_bt), position_bt


def _stack(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    mask_bhts: Mask,
    position_bt: Array,
    memory: Memory | None,
    causal: bool = False,
) -> dict[str, Array]:
    """The states of `stacks.encoder` or `stacks.decoder`."""
    hidden = [x_btd]
    weights: dict[str, list[Array]] = {"self_attention": [], "cross_attention": []}

    def recorded(
        name: str,
        own: Tree,
        x_btd: Array,
        memory: Memory,
        scores: Scores,
        rotation: Rotation | None = None,
    ) -> Array:
        given = memory.mask_bhts, scores
        heads = attention.project(own[name], config, x_btd, memory.vectors_bsd, rotation)
        weights[name].append(attention.attention_weights(*heads[:2], *given))
        vectors = x_btd, memory.vectors_bsd
        return attention.multi_head_attention(own[name], config, *vectors, *given, rotation)

    def layer(index: int, own: Tree, y_btd: Array) -> Array:
        scores = config.scores(index, causal)
        rotation = stacks.rotation(config, index, y_btd, position_bt)

        def attend(z_btd: Array) -> Array:
            itself = Memory(z_btd, mask_bhts)
            return recorded("self_attention", own, z_btd, itself, scores, rotation)

        attend_to_memory = None
        if memory is not None:
            given: dict[str, Any] = {"memory": memory, "scores": config.scores(None)}
            attend_to_memory = partial(recorded, "cross_attention", own, **given)
        hidden.append(layers.run(own, config, y_btd, attend, attend_to_memory))
        return hidden[-1]

    hidden[-1] = stacks.walk(parameters, config, x_btd, layer)
    maps = {f"{name}_lbhts": np.stack(one) for name, one in weights.items() if one}
    return {"hidden_lbtd": np.stack(hidden), **maps}
