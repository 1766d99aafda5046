"""What the first layer of a stack is given: the sum of token embedding, position and segment, and its norm."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reference_numpy import TransformerConfig, checks

from .framework import take_rows
from .mask import token_mask
from .positional_encoding import positional_encoding, token_positions

__all__ = ["embed", "masked_positions", "table"]


def masked_positions(
    config: TransformerConfig, side: str, token: jax.Array, mask_bt: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Which tokens are real, by default every id but the padding id, and the position of each, both `b t`.

    side: "source" or "target". Raises ValueError on tokens and masks that do not fit, and on more tokens than there are positions; where
    their number is a symbol, as `jax.export` has it, more of them give NaN.
    """
    vocabulary = config.source_vocabulary if side == "source" else config.target_vocabulary
    checks.check_tokens("token", token.shape, str(token.dtype), vocabulary)
    checks.check_length(
        token.shape[1] if isinstance(token.shape[1], int) else None, config.max_positions
    )
    if mask_bt is None:
        mask_bt = token_mask(token, config.padding_id)
    checks.check_token_mask(f"{side} mask", mask_bt.shape, str(mask_bt.dtype), token.shape[:2])
    return mask_bt, token_positions(mask_bt, config.position_start)


def embed(
    model: Any,
    side: str,
    token: jax.Array,
    position_bt: jax.Array,
    segment_bt: jax.Array | None = None,
    *,
    length: Any,
) -> jax.Array:
    """`norm(embedding(token) + position + segment)`, `b t d`, with norm and segments by config; side: "source" or "target".

    model: a `Transformer`. segment_bt: without it, 0. length: positions are less than this. They are known only when the program runs,
    the length mostly when it is traced: a constant table serves all sinusoidal ones.
    """
    config = model.config
    x_btd = getattr(model, table(config, side))(token)
    if config.positions == "learned":
        x_btd = x_btd + getattr(model, f"{side}_position_embedding")(position_bt)
    else:
        position_t = np.arange(length) if isinstance(length, int) else jnp.arange(length)
        x_btd = x_btd + take_rows(
            positional_encoding(position_t, config.model_width, x_btd.dtype),
            position_bt,
            mode="clip",
        )
    if config.segments and side == "source":
        x_btd = x_btd + model.source_segment_embedding(_segments(config, token, segment_bt))
    return getattr(model, f"{side}_embedding_norm")(x_btd) if config.embedding_norm else x_btd


def _segments(
    config: TransformerConfig, token: jax.Array, segment_bt: jax.Array | None
) -> jax.Array:
    """The segment of every token: without any, 0."""
    if segment_bt is None:
        return jnp.zeros_like(token if token.ndim == 2 else token[..., 0], int)
    checks.check_segments(config.segments, segment_bt.shape, str(segment_bt.dtype), token.shape)
    return segment_bt


def table(config: TransformerConfig, side: str) -> str:
    """The name of the token embedding of source or target, which may be one."""
    return (
        "source_embedding"
        if side == "source" or (config.share_embeddings and config.encoder_layers)
        else "target_embedding"
    )
