"""What a search is given, checked. A graph serves every length, so that nothing is padded and there is no plan of lengths."""

from typing import NamedTuple

import torch
from torch import Tensor

from reference_numpy import TransformerConfig, checks
from reference_numpy.strategy import Strategy

from .. import mask, precision
from ..embedding import check_ids

__all__ = ["Request", "request"]


class Request(NamedTuple):
    """The arguments of a search.

    forbidden_n: the ids that no answer holds. too_early_n: of every token of an answer, whether the end token may not stand there yet.
    """

    strategy: Strategy
    source: Tensor
    source_mask_bs: Tensor
    prefix_bp: Tensor
    pad_id: int
    forbidden_n: Tensor
    too_early_n: Tensor


def request(config: TransformerConfig, strategy: Strategy, source: Tensor, prefix: Tensor | None, source_mask_bs: Tensor | None) -> Request:
    """What is given, with the defaults of what is not; raises ValueError on ids and prefixes that do not fit."""
    checks.check_source(source.shape, precision.dtype_name(source.dtype))
    if prefix is None:
        prefix = source.new_full((len(source), 1), strategy.start_id)
    checks.check_prefix(prefix.shape, precision.dtype_name(prefix.dtype), config.padding_id, prefix[..., -1:].tolist())
    checks.check_same_batch(source=source.shape, prefix=prefix.shape)
    check_ids((source, config.source_vocabulary), (prefix, config.target_vocabulary))
    return Request(
        strategy=strategy,
        source=source,
        source_mask_bs=mask.token_mask(source, config.padding_id) if source_mask_bs is None else source_mask_bs,
        prefix_bp=prefix,
        pad_id=strategy.pad_id(config),
        forbidden_n=torch.tensor(strategy.forbidden_ids(config), dtype=torch.int64, device=source.device),
        too_early_n=torch.arange(strategy.max_new_tokens, device=source.device) < strategy.min_new_tokens,
    )
