"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from reference_numpy import checks

from .stacks import Decoder, Encoder

if TYPE_CHECKING:
    from .transformer import Transformer

__all__ = ["states"]


def states(
    model: "Transformer",
    source: tf.Tensor | None = None,
    target: tf.Tensor | None = None,
    source_mask_bs: tf.Tensor | None = None,
    target_mask_bt: tf.Tensor | None = None,
    segment_bs: tf.Tensor | None = None,
) -> dict[str, Any]:
    """The vectors before the first layer and after every layer, and the attention weights of every layer, in evaluation.

    encoder: hidden_lbtd and self_attention_lbhts; decoder: the same and, where there is an encoder, cross_attention_lbhts; l layer, t
    query. The last of a stack's vectors are those after its final norm, where the config has one; there is one more of them than layers.
    """
    config = model.config
    checks.check_source_given(
        config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
    )
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    result: dict[str, Any] = {}
    memory_bsd = source_mask_bhts = None
    if source is not None:
        x_bsd, source_mask_bhts = model.embed("source", source, source_mask_bs, segment_bs)
        result["encoder"] = _stack(model.encoder, x_bsd, None, source_mask_bhts, None, causal=False)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, self_mask_bhts = model.embed("target", target, target_mask_bt)
        result["decoder"] = _stack(
            model.decoder, x_btd, memory_bsd, self_mask_bhts, source_mask_bhts, causal=True
        )
    return result


def _stack(
    stack: Encoder | Decoder, x_btd: tf.Tensor, memory_bsd: tf.Tensor | None,
    self_mask_bhts: tf.Tensor | None, cross_mask_bhts: tf.Tensor | None, causal: bool,
) -> dict[str, tf.Tensor]:  # fmt: skip
    """The stack, and what it computes on the way."""
    hidden = [x_btd]
    weights: dict[str, list[tf.Tensor]] = {"self_attention": [], "cross_attention": []}
    for layer in stack.layers:
        y_btd = layer.residual_in("self_attention", x_btd)
        y_btd, weights_bhts = layer.self_attention(
            y_btd, y_btd, self_mask_bhts, causal=causal, return_weights=True
        )
        weights["self_attention"].append(weights_bhts)
        x_btd = layer.residual_out("self_attention", x_btd, y_btd, {})
        if memory_bsd is not None:
            y_btd = layer.residual_in("cross_attention", x_btd)
            y_btd, weights_bhts = layer.cross_attention(
                y_btd, memory_bsd, cross_mask_bhts, return_weights=True
            )
            weights["cross_attention"].append(weights_bhts)
            x_btd = layer.residual_out("cross_attention", x_btd, y_btd, {})
        x_btd = layer.residual_out(
            "feed_forward", x_btd, layer.feed_forward(layer.residual_in("feed_forward", x_btd)), {}
        )
        hidden.append(x_btd)
    hidden[-1] = stack.normalise(x_btd)
    return {"hidden_lbtd": tf.stack(hidden)} | {
        f"{name}_lbhts": tf.stack(maps) for name, maps in weights.items() if maps
    }
