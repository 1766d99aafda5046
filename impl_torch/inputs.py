"""The input of the first layer of a stack: the sum of token, position and segment embeddings.

The sum is normalized if the config says so. Rotary positions are applied in attention, not here.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import mask, positional_encoding
from .embedding import Embedding, SegmentEmbedding, Table
from .framework import is_changed
from .positional_encoding import PositionEmbedding
from .values import Text

__all__ = ["embed", "masked_positions", "table"]

# forward methods that check ids and look them up
FORWARDS = Embedding.forward, SegmentEmbedding.forward, PositionEmbedding.forward


class Inputs(NamedTuple):
    """The embeddings that one side of a model adds up, and their norm; None for absent modules."""

    embedding: nn.Module
    position_embedding: nn.Module | None
    segment_embedding: nn.Module | None
    embedding_norm: nn.Module | None


class Embedded(Protocol):
    """A model and its embeddings. inputs: those of "source" or "target"."""

    @property
    def config(self) -> TransformerConfig: ...

    def inputs(self, side: str) -> Inputs: ...


def masked_positions(
    config: TransformerConfig, side: str, token: Tensor, mask_bt: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Returns which tokens are real, by default all but the padding id, and their positions.

    Both are `b t`. side: "source" or "target". None, None: all tokens are real, so that kernels run
    without a mask, and token t has position t.
    """
    checks.check_length(token.shape[1], config.max_positions)
    if (mask_bt := real_tokens(config, Text(token, mask_bt))) is None:
        return None, None
    mask.check(f"{side} mask", mask_bt, token.shape[:2])
    if config.position_start == "row":
        return mask_bt, None
    return mask_bt, positional_encoding.token_positions(mask_bt)


def real_tokens(config: TransformerConfig, text: Text) -> Tensor | None:
    """Returns which tokens are real, by default every id but the padding id; None: all."""
    if text.mask is not None or config.padding_id is None or text.ids.is_floating_point():
        return text.mask
    return mask.token_mask(text.ids, config.padding_id)


def embed(
    model: Embedded,
    side: str,
    token: Tensor,
    position_bt: Tensor | None = None,
    segment_bt: Tensor | None = None,
    encoding_pd: Tensor | None = None,
) -> Tensor:
    """`norm(embedding(token) + position + segment)`, `b t d`; the config sets norm and segments.

    The ids must be checked. position_bt: default, token t has position t. segment_bt: default 0.
    encoding_pd: the sinusoidal encoding of all positions, if already computed.
    """
    config, inputs = model.config, model.inputs(side)
    scaled = config.scale_embedding or config.embedding_multiplier != 1
    x_btd = rows(inputs.embedding, token, scaled)
    if inputs.position_embedding is not None:
        if position_bt is None:
            position_bt = torch.arange(token.shape[1], device=token.device)[None]
        x_btd = x_btd + rows(inputs.position_embedding, position_bt, config.position_offset > 0)
    if encoding_pd is None:
        # Every position is less than the length, so one table serves the whole batch.
        encoding_pd = encoding_table(config, token.shape[1], x_btd.dtype, token.device)
    if encoding_pd is not None:
        at = encoding_pd if position_bt is None else F.embedding(position_bt, encoding_pd)
        x_btd = x_btd + at
    if inputs.segment_embedding is not None:
        if segment_bt is None:
            segment_bt = torch.zeros(1, 1, dtype=torch.int64, device=token.device)
        x_btd = x_btd + rows(inputs.segment_embedding, segment_bt)
    return x_btd if inputs.embedding_norm is None else inputs.embedding_norm(x_btd)


def encoding_table(
    config: TransformerConfig, length: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Returns the encoding of the first positions, `p d`; None if positions are not sinusoidal."""
    if config.positions != "sinusoidal":
        return None
    place_p = torch.arange(length, device=device) + config.position_offset
    own = config.model_width, dtype, config.sinusoid_layout
    return positional_encoding.positional_encoding(place_p, *own)


def rows(embedding: nn.Module, index_bt: Tensor, more: bool = False) -> Tensor:
    """Looks up checked ids; calls embeddings with hooks or of another class normally.

    more: whether this package's embedding scales its rows or has an offset. Raises ValueError if it
    was replaced by an `nn.Embedding`.
    """
    own = type(embedding).forward in FORWARDS and not is_changed(embedding)
    if own and isinstance(embedding, Table):
        return embedding.look_up(index_bt)
    if more and type(embedding) is nn.Embedding:
        raise ValueError(
            "this config's embedding scales or offsets its rows, so it must be impl_torch's own "
            "class; got an nn.Embedding"
        )
    return embedding(index_bt)


def table(model: Embedded, side: str) -> nn.Module:
    """Returns the token embedding of source or target; the two may be shared."""
    return model.inputs(side).embedding
