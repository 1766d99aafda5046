"""Masks: boolean, True = may attend, broadcastable to b h t s (MASK)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_numpy import checks

from . import precision

__all__ = ["causal_mask", "combine_masks", "padding_mask", "real_rows", "token_mask", "window_mask"]


def token_mask(token: Tensor, padding_id: int | None) -> Tensor:
    """`mask = token != padding_id`, `b t`; all True without a padding id or for one-hot rows."""
    if padding_id is None or token.ndim == 3:
        return torch.ones(token.shape[:2], dtype=torch.bool, device=token.device)
    return token != padding_id


def check(name: str, mask_bt: Tensor | None, tokens: Sequence[int] | None = None) -> None:
    """Raises ValueError if a token mask, boolean `b t`, does not match the tokens."""
    if mask_bt is not None:
        kind = precision.dtype_name(mask_bt.dtype)
        checks.check_token_mask(name, mask_bt.shape, kind, tokens)


def padding_mask(mask_bs: Tensor | None) -> Tensor | None:
    """Turns a mask of real tokens, `b s`, into `b 1 1 s`: no query may attend to padding."""
    check("mask", mask_bs)
    return None if mask_bs is None else mask_bs[:, None, None, :]


def causal_mask(
    target_length: int, source_length: int, device: torch.device | None = None
) -> Tensor:
    """Query i may attend to key j if `j <= i + (s - t)` (CAUSAL): `1 1 t s`.

    Aligned bottom-right; `is_causal` of torch's attention is aligned top-left.
    """
    allowed = torch.ones(1, 1, target_length, source_length, dtype=torch.bool, device=device)
    return allowed.tril(source_length - target_length)


def window_mask(
    target_length: int, source_length: int, window: int, device: torch.device | None = None
) -> Tensor:
    """Query i may attend to key j if `|i + (s - t) - j| < window` (WINDOW): `1 1 t s`."""
    if window < 1:
        raise ValueError(f"window must be at least 1; got {window}")
    allowed = torch.ones(1, 1, target_length, source_length, dtype=torch.bool, device=device)
    offset = source_length - target_length
    return allowed.tril(offset + window - 1).triu(offset - window + 1)


def combine_masks(mask_bhts: Tensor | None, other_bhts: Tensor | None) -> Tensor | None:
    """`mask & other`; None allows everything. A floating mask becomes -inf where other is False."""
    if mask_bhts is None or other_bhts is None:
        return other_bhts if mask_bhts is None else mask_bhts
    if mask_bhts.is_floating_point():
        return torch.where(other_bhts, mask_bhts, -torch.inf)
    return mask_bhts & other_bhts


def real_rows(x_btd: Tensor, mask_bt: Tensor | None) -> Tensor:
    """Zeroes the rows of padding, such as logits `b t v` (PADDING); None: all tokens are real."""
    if mask_bt is None:
        return x_btd
    return x_btd.masked_fill(~mask_bt[(...,) + (None,) * (x_btd.ndim - 2)], 0)
