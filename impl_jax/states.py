"""What a model computes on the way: the vectors between its layers, and its attention weights."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import checks

from .mask import padding_mask

__all__ = ["states"]

States = dict[str, dict[str, jax.Array]]


def states(
    model: Any,
    source: jax.Array | None = None,
    target: jax.Array | None = None,
    source_mask_bs: jax.Array | None = None,
    target_mask_bt: jax.Array | None = None,
    segment_bs: jax.Array | None = None,
) -> States:
    """The vectors before the first layer and after every layer, and the attention weights of every layer, in evaluation.

    model: a `Transformer`, in any mode. encoder: hidden_lbtd and self_attention_lbhts; decoder: the same and, where there is an encoder,
    cross_attention_lbhts; l layer, t query. The last of a stack's vectors are those after its final norm, where the config has one; there
    is one more of them than layers. Arguments and errors as the call; each stack that the config has needs its tokens.
    """
    config = model.config
    checks.check_source_given(
        config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
    )
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    model, result = nnx.view(model, deterministic=True), {}
    memory_bsd, cross_mask_bhts = None, None
    if source is not None:
        x_bsd, mask_bs = model.embed("source", source, source_mask_bs, segment_bs)
        cross_mask_bhts = padding_mask(mask_bs)
        result["encoder"] = _stack(model.encoder, x_bsd, None, cross_mask_bhts, None, False)
        memory_bsd = result["encoder"]["hidden_lbtd"][-1]
    if target is not None:
        x_btd, mask_bt = model.embed("target", target, target_mask_bt)
        result["decoder"] = _stack(
            model.decoder, x_btd, memory_bsd, padding_mask(mask_bt), cross_mask_bhts, True
        )
    return result


def _stack(
    stack: Any,
    x_btd: jax.Array,
    memory_bsd: jax.Array | None,
    self_mask_bhts: jax.Array,
    cross_mask_bhts: jax.Array | None,
    causal: bool,
) -> dict[str, jax.Array]:
    """The call of an `Encoder` or `Decoder`, and what it computes on the way."""
    hidden = [x_btd]
    weights: dict[str, list[jax.Array]] = {"self_attention": [], "cross_attention": []}
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
        y_btd = layer.feed_forward(layer.residual_in("feed_forward", x_btd))
        x_btd = layer.residual_out("feed_forward", x_btd, y_btd, {})
        hidden.append(x_btd)
    hidden[-1] = stack.final_norm(x_btd) if stack.final_norm else x_btd
    return {"hidden_lbtd": jnp.stack(hidden)} | {
        f"{name}_lbhts": jnp.stack(maps) for name, maps in weights.items() if maps
    }
