"""The checked arguments of a search; nothing is padded, since a program serves every length."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference_numpy import TransformerConfig, checks
from reference_numpy.strategy import Strategy

from .. import mask, precision
from ..embedding import check_ids

__all__ = ["Request", "request"]


class Request(NamedTuple):
    """The arguments of a search.

    forbidden_n: the ids excluded from answers. too_early_n: for every token of an answer, whether
    the end token would come too early.
    """

    strategy: Strategy
    source: Tensor | None
    source_mask_bs: Tensor | None
    prefix_bp: Tensor
    prefix_mask_bp: Tensor
    pad_id: int
    forbidden_n: Tensor
    too_early_n: Tensor


def request(
    config: TransformerConfig,
    strategy: Strategy,
    source: Tensor | None,
    prefix: Tensor | None,
    source_mask_bs: Tensor | None,
    prefix_mask_bp: Tensor | None,
) -> Request:
    """Fills in defaults; raises ValueError on invalid ids and prefixes."""
    checks.check_source_given(config.encoder_layers, source, source_mask_bs=source_mask_bs)
    if source is not None:
        checks.check_source(source.shape, precision.dtype_name(source.dtype))
    prefix, prefix_mask_bp = _prefix(config, strategy, source, prefix, prefix_mask_bp)
    if source is not None:
        checks.check_same_batch(source=source.shape, prefix=prefix.shape)
        if source_mask_bs is None:
            source_mask_bs = mask.token_mask(source, config.padding_id)
    sources = () if source is None else ((source, config.source_vocabulary),)
    check_ids(*sources, (prefix, config.target_vocabulary))
    device, pad_id = prefix.device, strategy.pad_id(config)
    forbidden = torch.tensor(strategy.forbidden_ids(config), dtype=torch.int64, device=device)
    too_early = torch.arange(strategy.max_new_tokens, device=device) < strategy.min_new_tokens
    return Request(
        strategy, source, source_mask_bs, prefix, prefix_mask_bp, pad_id, forbidden, too_early
    )


def _prefix(
    config: TransformerConfig,
    strategy: Strategy,
    source: Any,
    prefix: Tensor | None,
    mask_bp: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Returns the prefix of every answer, by default the start token, and its token mask."""
    checks.check_prefix_given(prefix is not None, source is not None, strategy.start_id)
    if prefix is None:
        prefix = source.new_full((len(source), 1), strategy.start_id)
    mask.check("prefix mask", mask_bp, prefix.shape)
    kind, last = precision.dtype_name(prefix.dtype), prefix[..., -1:].tolist()
    last_mask = () if mask_bp is None else mask_bp[:, -1].tolist()
    checks.check_prefix(prefix.shape, kind, config.padding_id, last, last_mask)
    read = prefix.shape[1] + strategy.max_new_tokens - 1  # without the last token of an answer
    checks.check_length(read, config.max_positions)
    return prefix, mask.token_mask(prefix, config.padding_id) if mask_bp is None else mask_bp
