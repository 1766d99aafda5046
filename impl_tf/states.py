"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from typing import Any

import tensorflow as tf

from reference_numpy import checks

from .framework import Model
from .stacks import Decoder, Encoder

__all__ = ["states"]


def states(
    model: Model,
    source: tf.Tensor | None = None,
    target: tf.Tensor | None = None,
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
    segment_bs: tf.Tensor | None = None,
) -> dict[str, Any]:
    """The vectors before the first layer and after every layer, and the attention weights of every
    layer, in evaluation.

    encoder: hidden_lbtd and self_attention_lbhts; decoder: the same and, beside an encoder,
    cross_attention_lbhts; l layer, t query. A stack has one vector more than layers; the last one
    is taken after the final norm, if the config has one.
    """
    config = model.config
    checks.check_source_given(
        config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
    )
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    result: dict[str, Any] = {}
    memory_bsd = source_mask_bhts = None
    if source is not None:
        x_bsd, source_mask_bhts, position_bs = model.embed(
            "source", source, source_mask_bs, segment_bs
        )
        given = None, source_mask_bhts, None, position_bs
        result["encoder"] = _stack(model.encoder, x_bsd, *given, causal=False)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, self_mask_bhts, position_bt = model.embed("target", target, target_mask_bt)
        given = memory_bsd, self_mask_bhts, source_mask_bhts, position_bt
        result["decoder"] = _stack(model.decoder, x_btd, *given, causal=True)
    return result


def _stack(
    stack: Encoder | Decoder,
    x_btd: tf.Tensor,
    memory_bsd: tf.Tensor | None,
    self_mask_bhts: tf.Tensor | None,
    cross_mask_bhts: tf.Tensor | None,
    position_bt: tf.Tensor | None,
    causal: bool,
) -> dict[str, tf.Tensor]:
    """Runs the stack; its vectors and attention weights."""
    hidden, weights = [x_btd], dict[str, list[tf.Tensor]]()

    def run(layer: Any, x_btd: tf.Tensor, given: dict[str, Any]) -> tf.Tensor:
        def recorded(name: str, *inputs: Any, **named: Any) -> tf.Tensor:
            y_btd, weights_bhts = getattr(layer, name)(*inputs, **named, return_weights=True)
            weights.setdefault(f"{name}_lbhts", []).append(weights_bhts)
            return y_btd

        def attend(y_btd: tf.Tensor) -> tf.Tensor:
            of_itself = y_btd, y_btd, self_mask_bhts
            return recorded("self_attention", *of_itself, causal=causal, **given)

        def attend_to_memory(y_btd: tf.Tensor) -> tf.Tensor:
            return recorded("cross_attention", y_btd, memory_bsd, cross_mask_bhts)

        return layer.run(x_btd, attend, None if memory_bsd is None else attend_to_memory)

    given = stack.given(x_btd, None, position_bt)
    for layer, own in zip(stack.layers, given, strict=True):
        x_btd = run(layer, x_btd, own)
        hidden.append(x_btd)
    hidden[-1] = stack.normalise(x_btd)
    return {"hidden_lbtd": tf.stack(hidden)} | {
        name: tf.stack(maps) for name, maps in weights.items()
    }
