"""The input of the first layer of a stack: the sum of token, position and segment embeddings.

The sum is normalized if the config says so. Rotary positions are applied in attention, not here.
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
    """The embeddings that one side of a model adds up, and their norm; None for absent modules."""

    embedding: Embedding
    position_embedding: PositionEmbedding | None  # if positions are learned
    segment_embedding: SegmentEmbedding | None
    norm: Norm | None


class Model(Protocol):
    """Interface of `Transformer` used here."""

    config: TransformerConfig

    def inputs(self, side: str) -> Inputs: ...


def masked_positions(
    config: TransformerConfig, side: str, token: jax.Array, mask_bt: Mask = None
) -> tuple[jax.Array, jax.Array]:
    """Returns which tokens are real, by default all but the padding id, and their positions.

    Both are `b t`. Raises ValueError on invalid tokens or masks, and on more tokens than positions;
    if the length is a symbol, as in `jax.export`, extra tokens give NaN.
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
    """`norm(embedding(token) + position + segment)`, `b t d`; the config sets norm and segments.

    segment_bt: default 0. length: an upper bound of the positions, which are mostly traced; if it
    is static, all sinusoidal positions come from one constant table.
    """
    config, own = model.config, model.inputs(side)
    x_btd = own.embedding(token)
    if own.position_embedding is not None:
        x_btd = x_btd + own.position_embedding(position_bt)
    elif config.positions == "sinusoidal":
        position_t = np.arange(length) if isinstance(length, int) else jnp.arange(length)
        made = config.model_width, x_btd.dtype, config.sinusoid_layout
        table_td = positional_encoding(position_t + config.position_offset, *made)
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
    """Returns both sides of a call as texts. Raises ValueError on missing or superfluous sides."""
    source_text, target_text = Text.of(source), Text.of(target)
    checks.check_target_given(config.decoder_layers, target_text)
    checks.check_source_given(config.encoder_layers, source_text)
    if source_text is not None and target_text is not None:
        checks.check_same_batch(source=source_text.ids.shape, target=target_text.ids.shape)
    return source_text, target_text


def check_memory(
    config: TransformerConfig, memory_bsd: jax.Array | None, source_mask_bs: Mask = None
) -> None:
    """Raises ValueError if memory or mask do not match the decoder."""
    shape = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, shape, source_mask_bs)
    if shape is not None:
        mask.check("source mask", source_mask_bs, shape[:2])


def token_embedding(config: TransformerConfig, vocabulary: int, **own: Unpack[Own]) -> Embedding:
    """Returns the token embedding of one side."""
    scale = config.scale_embedding, config.round_embedding_scale, config.embedding_multiplier
    return Embedding(vocabulary, config.model_width, *scale, **own)


def embedding_norm(config: TransformerConfig, **own: Unpack[Own]) -> Norm | None:
    """Returns the norm of a side's vectors, or None if the config has none."""
    return norm(config, **own) if config.embedding_norm else None


def position_embedding(config: TransformerConfig, **own: Unpack[Own]) -> PositionEmbedding | None:
    """Returns the learned positions of a side, or None if the config has none."""
    if config.positions != "learned":
        return None
    return PositionEmbedding(config.sizes["p"], config.model_width, config.position_offset, **own)


def table(config: TransformerConfig, side: str) -> str:
    """Returns the name of the source or target embedding; the two may be shared."""
    shared = config.share_embeddings and config.encoder_layers
    return "source_embedding" if side == "source" or shared else "target_embedding"
