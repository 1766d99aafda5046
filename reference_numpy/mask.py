"""Masks: boolean, True = may attend, broadcastable to b h t s (MASK)."""

import numpy as np

from . import checks
from .arrays import Array, Mask

__all__ = ["causal_mask", "combine_masks", "padding_mask", "token_mask", "window_mask"]


def token_mask(token: Array, padding_id: int | None) -> Array:
    """`mask = token != padding_id`, `b t`; all True without a padding id or for one-hot rows."""
    if padding_id is None or token.ndim == 3:
        return np.ones(token.shape[:2], dtype=bool)
    return token != padding_id


def padding_mask(mask_bs: Array) -> Array:
    """Turns a mask of real tokens, `b s`, into `b 1 1 s`: no query may attend to padding."""
    checks.check_token_mask("mask", mask_bs.shape, str(mask_bs.dtype))
    return mask_bs[:, None, None, :]


def causal_mask(target_length: int, source_length: int) -> Array:
    """Query i may attend to key j if `j <= i + (s - t)` (CAUSAL): `1 1 t s`.

    The last query aligns with the last key, so a cached step equals that row of the full run.
    """
    offset = source_length - target_length
    return (np.arange(source_length) <= np.arange(target_length)[:, None] + offset)[None, None]


def window_mask(target_length: int, source_length: int, window: int) -> Array:
    """Query i may attend to key j if `|i + (s - t) - j| < window` (WINDOW): `1 1 t s`.

    With causality a query sees itself and the `window - 1` keys before it. Raises ValueError if
    window is less than 1. Source: Beltagy et al. 2020, section 3.1.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1; got {window}")
    query_t1 = np.arange(target_length)[:, None] + source_length - target_length
    return (np.abs(query_t1 - np.arange(source_length)) < window)[None, None]


def combine_masks(mask_bhts: Mask, other_bhts: Array | None) -> Array | None:
    """`mask & other`: a query may attend to a key if both allow it. None allows everything."""
    if mask_bhts is None or other_bhts is None:
        return other_bhts if mask_bhts is None else mask_bhts
    return mask_bhts & other_bhts
