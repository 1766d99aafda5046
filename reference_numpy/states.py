"""Intermediate results of a model: the vectors between its layers, and its attention weights."""

import numpy as np

from . import attention, layers, stacks, transformer
from .arrays import Array, Mask, Tree
from .config import TransformerConfig as Config
from .values import Attending, Memory, Text

__all__ = ["states"]


def states(
    parameters: Tree,
    config: Config,
    source: Text | Array | None = None,
    target: Text | Array | None = None,
) -> dict[str, dict[str, Array]]:
    """Returns the vectors before the first and after every layer, and all attention weights.

    Each stack has `hidden_lbtd` and `self_attention_lbhts`, a decoder with an encoder also
    `cross_attention_lbhts`; axis l is the layer. There is one more hidden state than layers; the
    last is taken after the final norm, if the config has one. Dropout is off. Each stack of the
    config needs its tokens. Arguments and errors match `transformer.transformer`. Source: outputs
    `hidden_states` and `attentions` of the library transformers.
    """
    source, target = transformer.sides(config, source, target)
    result, memory = dict[str, dict[str, Array]](), None
    if source is not None:
        given = transformer.embed(parameters, config, "source", source, None)
        result["encoder"] = _stack(parameters["encoder"], config, None, *given)
        memory = Memory(result["encoder"]["hidden_lbtd"][-1], given[1])
    if target is not None:
        given = transformer.embed(parameters, config, "target", target, None)
        result["decoder"] = _stack(parameters["decoder"], config, memory, *given, causal=True)
    return result


def _stack(
    parameters: Tree,
    config: Config,
    memory: Memory | None,
    x_btd: Array,
    mask_bhts: Mask,
    position_bt: Array,
    causal: bool = False,
) -> dict[str, Array]:
    """Returns the states of `stacks.encoder` or `stacks.decoder`."""
    hidden = [x_btd]
    weights: dict[str, list[Array]] = {"self_attention": [], "cross_attention": []}

    def recorded(
        name: str, own: Tree, y_btd: Array, memory_bsd: Array, attending: Attending
    ) -> Array:
        seen_bhts, scores, rotation = attending
        heads = attention.project(own, config, y_btd, memory_bsd, rotation)
        given = heads.query_bthk, heads.key_bsgk, seen_bhts, scores, heads.sink_h
        weights[name].append(attention.attention_weights(*given))
        return attention.multi_head_attention(own, config, y_btd, memory_bsd, attending)

    def layer(index: int, own: Tree, y_btd: Array) -> Array:
        told = stacks.attending(config, index, y_btd, mask_bhts, position_bt, causal)

        def attend(z_btd: Array) -> Array:
            return recorded("self_attention", own["self_attention"], z_btd, z_btd, told)

        if memory is None:
            hidden.append(layers.run(own, config, y_btd, attend))
            return hidden[-1]
        vectors_bsd, crossing = memory.vectors_bsd, Attending(memory.mask_bhts, config.scores(None))

        def attend_to_memory(z_btd: Array) -> Array:
            crossed = own["cross_attention"]
            return recorded("cross_attention", crossed, z_btd, vectors_bsd, crossing)

        hidden.append(layers.run(own, config, y_btd, attend, attend_to_memory))
        return hidden[-1]

    hidden[-1] = stacks.walk(parameters, config, x_btd, layer)
    maps = {f"{name}_lbhts": np.stack(one) for name, one in weights.items() if one}
    return {"hidden_lbtd": np.stack(hidden), **maps}
