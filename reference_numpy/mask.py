"""Masks: boolean, True = may attend, broadcastable to b h t s (MASK)."""

import numpy as np

from . import checks

__all__ = ["causal_mask", "combine_masks", "padding_mask", "token_mask"]


def token_mask(token: np.ndarray, padding_id: int | None) -> np.ndarray:
    """`mask = token != padding_id`, `b t`; True everywhere without a padding id and for soft one-hot rows, which hold no id."""
    if padding_id is None or token.ndim == 3:
        return np.ones(token.shape[:2], dtype=bool)
    return token != padding_id


def padding_mask(mask_bs: np.ndarray) -> np.ndarray:
    """No query may attend to padding: `b s`, True = real token, with axes of size 1 for heads and queries: `b 1 1 s`."""
    checks.check_token_mask("mask", mask_bs.shape, str(mask_bs.dtype))
    return mask_bs[:, None, None, :]


def causal_mask(target_length: int, source_length: int) -> np.ndarray:
    """Query i may attend to key j where `j <= i + (s - t)` (CAUSAL): `1 1 t s`.

    The last query is aligned with the last key, so that a step on cached keys equals the same row of the full run.
    """
    offset = source_length - target_length
    return (np.arange(source_length) <= np.arange(target_length)[:, None] + offset)[None, None]


def combine_masks(mask_bhts: np.ndarray | None, other_bhts: np.ndarray | None) -> np.ndarray | None:
    """A pair may attend where both masks allow it; None stands for a mask that allows everything."""
    if mask_bhts is None or other_bhts is None:
        return other_bhts if mask_bhts is None else mask_bhts
    return mask_bhts & other_bhts
