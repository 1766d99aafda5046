"""What the first layer of a stack is given: token embedding, position and segment, normalised.

Rotary positions are not added here: attention rotates its queries and keys by them.
"""

from typing import NamedTuple, Protocol, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from reference_numpy import TransformerConfig, checks

from . import mask
from .embedding import Embedding, SegmentEmbedding
from .framework import take_rows
from .normalization import Norm, norm
from .positional_encoding import PositionEmbedding, positional_encoding, token_positions
from .values import Mask, Own, Text

__all__ = ["embed", "masked_positions", "table"]


class Inputs(NamedTuple):
    """The modules that embed the tokens of a side, source or target; absent ones are None."""

    embedding: Embedding
    position_embedding: PositionEmbedding | None  # of learned positions
    segment_embedding: SegmentEmbedding | None
    norm: Norm | None


class Model(Protocol):
    """A `Transformer`."""

    config: TransformerConfig

    def inputs(self, side: str) -> Inputs: ...


def masked_positions(
    config: TransformerConfig, side: str, token: jax.Array, mask_bt: Mask = None
) -> tuple[jax.Array, jax.Array]:
    """Which tokens are real, by default every id but the padding id, and their positions, `b t`.

    Raises ValueError on tokens and masks that do not fit, and on more tokens than positions; if
    their number is a symbol, as in `jax.export`, more of them give NaN.
    """
    vocabulary = config.source_vocabulary if side == "source" else config.target_vocabulary
    checks.check_tokens("token", token.shape, str(token.dtype), vocabulary)
    length = token.shape[1] if isinstance(token.shape[1], int) else None
    checks.check_length(length, config.max_positions)
    if mask_bt is None:
        mask_bt = mask.token_mask(token, config.padding_id)
    mask.check(f"{side} mask", mask_bt, token.shape[:2])
    return mask_bt, token_positions(mask_bt, config.position_start)


def embed(
    model: Model,
    side: str,
    token: jax.Array,
    position_bt: jax.Array,
    segment_bt: jax.Array | None = None,
    *,
    length: int | jax.Array,
) -> jax.Array:
    """`norm(embedding(token) + position + segment)`, `b t d`, with norm and segments by config.

    segment_bt: by default 0. length: a bound of the positions, which are mostly traced; if it is
    known, one constant table serves all sinusoidal ones.
    """
    config, own = model.config, model.inputs(side)
    x_btd = own.embedding(token)
    if own.position_embedding is not None:
        x_btd = x_btd + own.position_embedding(position_bt)
    elif config.positions == "sinusoidal":
        position_t = np.arange(length) if isinstance(length, int) else jnp.arange(length)
        layout = config.sinusoid_layout
        table_td = positional_encoding(position_t, config.model_width, x_btd.dtype, layout)
        x_btd = x_btd + take_rows(table_td, position_bt, mode="clip")
    if segment_bt is not None:
        segments, kind = config.segments if side == "source" else 0, str(segment_bt.dtype)
        checks.check_segments(segments, segment_bt.shape, kind, token.shape)
    if own.segment_embedding is not None:
        if segment_bt is None:
            segment_bt = jnp.zeros_like(token if token.ndim == 2 else token[..., 0], int)
        x_btd = x_btd + own.segment_embedding(segment_bt)
    return x_btd if own.norm is None else own.norm(x_btd)


def sides(
    config: TransformerConfig, source: Text | jax.Array | None, target: Text | jax.Array | None
) -> tuple[Text | None, Text | None]:
    """Both sides of a call. Raises ValueError on one that is missing, or that no stack reads."""
    source_text, target_text = Text.of(source), Text.of(target)
    checks.check_target_given(config.decoder_layers, target_text)
    checks.check_source_given(config.encoder_layers, source_text)
    if source_text is not None and target_text is not None:
        checks.check_same_batch(source=source_text.ids.shape, target=target_text.ids.shape)
    return source_text, target_text


def check_memory(
    config: TransformerConfig, memory_bsd: jax.Array | None, source_mask_bs: Mask = None
) -> None:
    """Raises ValueError if the decoder cannot attend to this memory, or the mask is none."""
    shape = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, shape, source_mask_bs)
    if shape is not None:
        mask.check("source mask", source_mask_bs, shape[:2])


def token_embedding(config: TransformerConfig, vocabulary: int, **own: Unpack[Own]) -> Embedding:
    """The token embedding of a side by config."""
    scale, rounded = config.scale_embedding, config.round_embedding_scale
    return Embedding(vocabulary, config.model_width, scale, rounded, **own)


def embedding_norm(config: TransformerConfig, **own: Unpack[Own]) -> Norm | None:
    """The norm of a side's vectors; None by config."""
    return norm(config, **own) if config.embedding_norm else None


def position_embedding(config: TransformerConfig, **own: Unpack[Own]) -> PositionEmbedding | None:
    """The learned positions of a side; None by config."""
    if config.positions != "learned":
        return None
    return PositionEmbedding(config.sizes["p"], config.model_width, config.position_offset, **own)


def table(config: TransformerConfig, side: str) -> str:
    """The name of the token embedding of source or target, which may be one."""
    shared = config.share_embeddings and config.encoder_layers
    return "source_embedding" if side == "source" or shared else "target_embedding"
