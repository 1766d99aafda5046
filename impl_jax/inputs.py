"""What the first layer of a stack is given: the sum of token embedding, position and segment, and its norm."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reference_numpy import TransformerConfig, checks

from .framework import take_rows
from .positional_encoding import positional_encoding

__all__ = ["embed", "table"]


def embed(
    model: Any, side: str, token: jax.Array, position_bt: jax.Array, segment_bt: jax.Array | None = None, *, length: Any
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
        x_btd = x_btd + take_rows(positional_encoding(position_t, config.model_width, x_btd.dtype), position_bt, mode="clip")
    if config.segments and side == "source":
        x_btd = x_btd + model.source_segment_embedding(_segments(config, token, segment_bt))
    return getattr(model, f"{side}_embedding_norm")(x_btd) if config.embedding_norm else x_btd


def _segments(config: TransformerConfig, token: jax.Array, segment_bt: jax.Array | None) -> jax.Array:
    """The segment of every token: without any, 0."""
    if segment_bt is None:
        return jnp.zeros_like(token if token.ndim == 2 else token[..., 0], int)
    checks.check_segments(config.segments, segment_bt.shape, str(segment_bt.dtype), token.shape)
    return segment_bt


def table(config: TransformerConfig, side: str) -> str:
    """The name of the token embedding of source or target, which may be one."""
    return "source_embedding" if side == "source" or (config.share_embeddings and config.encoder_layers) else "target_embedding"
