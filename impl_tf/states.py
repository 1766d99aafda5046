"""Intermediate results of a model: the vectors between its layers, and its attention weights."""

from typing import TypeAlias

import tensorflow as tf

from .attention import MultiHeadAttention, attention_weights
from .framework import keras
from .inputs import check_given
from .kernels.attention import weights_value
from .rotary import Rotation
from .stacks import Decoder, Encoder
from .values import Heads, Text

__all__ = ["states"]

States: TypeAlias = dict[str, dict[str, tf.Tensor]]


def states(model: keras.Model, source: Text | None = None, target: Text | None = None) -> States:
    """Returns the vectors before the first and after every layer, and all attention weights.

    encoder: hidden_lbtd and self_attention_lbhts; decoder: the same and, with an encoder,
    cross_attention_lbhts; l layer, t query. The last vectors are taken after the final norm, if the
    config has one. In evaluation mode.
    """
    check_given(model.config, source, target)
    result: States = {}
    memory_bsd = source_mask_bhts = None
    if source is not None:
        x_bsd, source_mask_bhts, position_bs = model.embed("source", source)
        result["encoder"] = _stack(model.encoder, x_bsd, source_mask_bhts, position_bs)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, mask_bhts, position_bt = model.embed("target", target)
        result["decoder"] = _stack(
            model.decoder, x_btd, mask_bhts, position_bt, memory_bsd, source_mask_bhts
        )
    return result


def _stack(
    stack: Encoder | Decoder,
    x_btd: tf.Tensor,
    self_mask_bhts: tf.Tensor | None,
    position_bt: tf.Tensor | None,
    memory_bsd: tf.Tensor | None = None,
    cross_mask_bhts: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Runs a stack and returns its vectors and attention weights."""
    hidden: list[tf.Tensor] = []
    weights: dict[str, list[tf.Tensor]] = {}

    def recorded(
        name: str, attention: MultiHeadAttention, heads: Heads, mask_bhts: tf.Tensor | None
    ) -> tf.Tensor:
        query_bthk, key_bsgk, value_bsge, sink_h = heads
        weights_bhts = attention_weights(query_bthk, key_bsgk, mask_bhts, attention.scores, sink_h)
        weights.setdefault(name, []).append(weights_bhts)
        return attention.output_projection(weights_value(weights_bhts, value_bsge))

    def through(
        layer: keras.layers.Layer, x_btd: tf.Tensor, rotation: Rotation | None, _: int
    ) -> tf.Tensor:
        def attend(y_btd: tf.Tensor) -> tf.Tensor:
            heads = layer.self_attention.project(y_btd, y_btd, rotation)
            return recorded("self_attention_lbhts", layer.self_attention, heads, self_mask_bhts)

        def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
            heads = layer.cross_attention.project(y_btd, memory_bsd)
            return recorded("cross_attention_lbhts", layer.cross_attention, heads, cross_mask_bhts)

        hidden.append(x_btd)
        return layer.run(x_btd, attend, None if memory_bsd is None else attend_to_memory)

    hidden.append(stack.walk(x_btd, through, position_bt))
    found = {name: tf.stack(maps) for name, maps in weights.items()}
    return {"hidden_lbtd": tf.stack(hidden), **found}
