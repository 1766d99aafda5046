"""What the first layer of a stack is given: the sum of token embedding, position and segment, and its norm."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import mask, positional_encoding, precision
from .embedding import Table

__all__ = ["embed", "masked_positions", "table"]


def masked_positions(
    config: TransformerConfig, side: str, token: Tensor, mask_bt: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Which tokens are real, by default every id but the padding id, and the position of each, both `b t`; side: "source" or "target".

    None: every token is real, so that the kernels run without a mask; token t has position t.
    """
    checks.check_length(token.shape[1], config.max_positions)
    if mask_bt is None and (config.padding_id is None or token.is_floating_point()):
        return None, None
    mask_bt = mask.token_mask(token, config.padding_id) if mask_bt is None else mask_bt
    checks.check_token_mask(
        f"{side} mask", mask_bt.shape, precision.dtype_name(mask_bt.dtype), token.shape[:2]
    )
    return mask_bt, None if config.position_start == "row" else positional_encoding.token_positions(
        mask_bt
    )


def embed(
    model: Any,
    side: str,
    token: Tensor,
    position_bt: Tensor | None = None,
    segment_bt: Tensor | None = None,
    encoding_pd: Tensor | None = None,
) -> Tensor:
    """`norm(embedding(token) + position + segment)`, `b t d`, with norm and segments by config.

    position_bt: without it, token t has position t. segment_bt: without it, 0. All ids are checked. encoding_pd: the sinusoidal encoding
    of every position, where the caller has it.
    """
    config = model.config
    x_btd = rows(table(model, side), token, config.scale_embedding)
    if config.positions == "learned":
        position_bt = (
            torch.arange(token.shape[1], device=token.device)[None]
            if position_bt is None
            else position_bt
        )
        x_btd = x_btd + rows(
            getattr(model, f"{side}_position_embedding"), position_bt, config.position_offset > 0
        )
    else:
        if encoding_pd is None:
            # Every position is less than the length, so that the rows of one table serve the whole batch.
            place_t = torch.arange(token.shape[1], device=token.device)
            encoding_pd = positional_encoding.positional_encoding(
                place_t, x_btd.shape[2], x_btd.dtype
            )
        x_btd = x_btd + (
            encoding_pd if position_bt is None else F.embedding(position_bt, encoding_pd)
        )
    if config.segments and side == "source":
        segment_bt = (
            torch.zeros(1, 1, dtype=torch.int64, device=token.device)
            if segment_bt is None
            else segment_bt
        )
        x_btd = x_btd + rows(model.source_segment_embedding, segment_bt)
    return getattr(model, f"{side}_embedding_norm")(x_btd) if config.embedding_norm else x_btd


def rows(embedding: Any, index_bt: Tensor, more: bool = False) -> Tensor:
    """What the embedding gives for ids that are checked; another module in its place is called as an `nn.Embedding` is.

    more: whether ours does more than that, scaling or an offset. Raises ValueError where an `nn.Embedding` itself stands in its place.
    """
    if isinstance(embedding, Table):
        return embedding(index_bt, checked=True)
    if more and type(embedding) is nn.Embedding:
        raise ValueError(
            "an embedding of this config scales its rows or skips some: impl_torch's own; got an nn.Embedding"
        )
    return embedding(index_bt)


def table(model: Any, side: str) -> Any:
    """The token embedding of source or target, which may have one table."""
    return getattr(model, f"{side}_embedding")
