"""The input of a stack: the sum of token embedding, position and segment, and its norm.

Rotary positions are not added here: attention rotates its queries and keys by them.
"""

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import mask
from .framework import Model, attached_mask, sizes
from .positional_encoding import positional_encoding, token_positions

__all__ = ["embed", "masked_positions", "table"]


def masked_positions(
    config: TransformerConfig, side: str, token: tf.Tensor, mask_bt: tf.Tensor | None = None
) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Which tokens are real, and the position of each, both `b t`; None: every token is real.

    By default those of Keras' mask, or every id but the padding id. side: "source" or "target".
    Raises ValueError on masks that do not fit, and on more tokens than there are positions.
    """
    checks.check_length(token.shape[1], config.max_positions)
    mask_bt = attached_mask(token) if mask_bt is None else mask_bt
    if mask_bt is None and (config.padding_id is None or len(token.shape) == 3):
        shape = tf.shape(token, out_type=tf.int64)[:2]
        return None, tf.broadcast_to(tf.range(shape[1]), shape)
    mask_bt = mask.token_mask(token, config.padding_id) if mask_bt is None else mask_bt
    checks.check_token_mask(f"{side} mask", mask_bt.shape, mask_bt.dtype.name, token.shape[:2])
    return mask_bt, token_positions(mask_bt, config.position_start)


def embed(
    model: Model,
    side: str,
    token: tf.Tensor,
    position_bt: tf.Tensor,
    segment_bt: tf.Tensor | None = None,
    position_pd: tf.Tensor | None = None,
) -> tf.Tensor:
    """`norm(embedding(token) + position + segment)`, `b t d`: the input of the encoder (side:
    "source") or the decoder ("target") before dropout, with norm and segments by config.

    segment_bt: by default 0. position_pd: the vectors of all positions, if they are known already.
    """
    config, length = model.config, sizes(token)[1]
    x_btd = model.token_embedding(side)(token)
    if position_pd is None and config.positions == "learned":
        x_btd += getattr(model, f"{side}_position_embedding")(position_bt)
    elif config.positions in ("learned", "sinusoidal"):
        if position_pd is None:
            # No position reaches the length, so the sines of one row serve the whole batch.
            position_pd = sinusoids(config, length, x_btd.dtype)
        x_btd += tf.gather(position_pd, position_bt)
    if config.segments and side == "source":
        if segment_bt is None:
            segment_bt = tf.zeros(tf.shape(token)[:2], tf.int32)
        x_btd += getattr(model, f"{side}_segment_embedding")(segment_bt)
    return getattr(model, f"{side}_embedding_norm")(x_btd) if config.embedding_norm else x_btd


def sinusoids(config: TransformerConfig, length: int | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The vectors of the first positions, `p d`."""
    return positional_encoding(tf.range(length), config.model_width, dtype, config.sinusoid_layout)


def table(config: TransformerConfig, side: str) -> str:
    """The canonical name of the token embedding of source or target, which may be one."""
    return (
        "source_embedding"
        if side == "source" or (config.share_embeddings and config.encoder_layers)
        else "target_embedding"
    )
