"""What the first layer of a stack is given: the sum of token embedding, position and segment, and its norm."""

from typing import TYPE_CHECKING

import tensorflow as tf

from reference_numpy import TransformerConfig

from .framework import keras
from .positional_encoding import positional_encoding

if TYPE_CHECKING:
    from .transformer import Transformer

__all__ = ["embed", "table"]


def embed(
    model: "Transformer",
    side: str,
    token: tf.Tensor,
    position_bt: tf.Tensor,
    segment_bt: tf.Tensor | None = None,
    position_pd: tf.Tensor | None = None,
) -> tf.Tensor:
    """What the first layer of the encoder (side: "source") or the decoder ("target") is given, before dropout:
    `norm(embedding(token) + position + segment)`, `b t d`, with norm and segments by config. segment_bt: without it, 0.

    position_pd: what is added at every position, where it is known already.
    """
    config, length = model.config, keras.ops.shape(token)[1]
    x_btd = getattr(model, table(config, side))(token)
    if position_pd is None and config.positions == "learned":
        x_btd += getattr(model, f"{side}_position_embedding")(position_bt)
    else:
        if position_pd is None:  # no position reaches the length, so the sines of one row serve the whole batch
            position_pd = positional_encoding(tf.range(length), config.model_width, x_btd.dtype)
        x_btd += tf.gather(position_pd, position_bt)
    if config.segments and side == "source":
        x_btd += model.source_segment_embedding(tf.zeros(tf.shape(token)[:2], tf.int32) if segment_bt is None else segment_bt)
    return getattr(model, f"{side}_embedding_norm")(x_btd) if config.embedding_norm else x_btd


def table(config: TransformerConfig, side: str) -> str:
    """The name of the token embedding of source or target, which may be one."""
    return "source_embedding" if side == "source" or (config.share_embeddings and config.encoder_layers) else "target_embedding"
