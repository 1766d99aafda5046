"""What the first layer of a stack is given: token embedding, position and segment, normalised.

Rotary positions are not added here: attention rotates its queries and keys by them.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from reference_numpy import TransformerConfig, checks

from .embedding import Embedding, SegmentEmbedding
from .framework import take_rows
from .mask import token_mask
from .normalization import Norm
from .positional_encoding import PositionEmbedding, positional_encoding, token_positions

__all__ = ["embed", "masked_positions", "table"]


class Side(NamedTuple):
    """The modules that embed the tokens of a side, source or target; absent ones are None."""

    embedding: Embedding
    position_embedding: PositionEmbedding | None  # of learned positions
    segment_embedding: SegmentEmbedding | None
    norm: Norm | None


class Model(Protocol):
    """A `Transformer`."""

    config: TransformerConfig

    def side(self, name: str) -> Side: ...


def masked_positions(
    config: TransformerConfig, side: str, token: jax.Array, mask_bt: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Which tokens are real, by default every id but the padding id, and their positions, `b t`.

    side: "source" or "target". Raises ValueError on tokens and masks that do not fit, and on more
    tokens than positions; if their number is a symbol, as in `jax.export`, more of them give NaN.
    """
    vocabulary = config.source_vocabulary if side == "source" else config.target_vocabulary
    checks.check_tokens("token", token.shape, str(token.dtype), vocabulary)
    length = token.shape[1] if isinstance(token.shape[1], int) else None
    checks.check_length(length, config.max_positions)
    if mask_bt is None:
        mask_bt = token_mask(token, config.padding_id)
    checks.check_token_mask(f"{side} mask", mask_bt.shape, str(mask_bt.dtype), token.shape[:2])
    return mask_bt, token_positions(mask_bt, config.position_start)


def embed(
    model: Model,
    side: str,
    token: jax.Array,
    position_bt: jax.Array,
    segment_bt: jax.Array | None = None,
    *,
    length: Any,
) -> jax.Array:
    """`norm(embedding(token) + position + segment)`, `b t d`, with norm and segments by config.

    side: "source" or "target". segment_bt: by default 0. length: a bound of the positions, which
    are mostly traced; it is mostly known then, and one constant table serves all sinusoidal ones.
    """
    config, own = model.config, model.side(side)
    x_btd = own.embedding(token)
    if own.position_embedding is not None:
        x_btd = x_btd + own.position_embedding(position_bt)
    elif config.positions == "sinusoidal":
        position_t = np.arange(length) if isinstance(length, int) else jnp.arange(length)
        layout = config.sinusoid_layout
        table_td = positional_encoding(position_t, config.model_width, x_btd.dtype, layout)
        x_btd = x_btd + take_rows(table_td, position_bt, mode="clip")
    if own.segment_embedding is not None:
        x_btd = x_btd + own.segment_embedding(_segments(config, token, segment_bt))
    return x_btd if own.norm is None else own.norm(x_btd)


def _segments(
    config: TransformerConfig, token: jax.Array, segment_bt: jax.Array | None
) -> jax.Array:
    """The segment of every token, by default 0."""
    if segment_bt is None:
        return jnp.zeros_like(token if token.ndim == 2 else token[..., 0], int)
    checks.check_segments(config.segments, segment_bt.shape, str(segment_bt.dtype), token.shape)
    return segment_bt


def table(config: TransformerConfig, side: str) -> str:
    """The name of the token embedding of source or target, which may be one."""
    shared = config.share_embeddings and config.encoder_layers
    return "source_embedding" if side == "source" or shared else "target_embedding"
