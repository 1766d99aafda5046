"""Sinusoidal positions (POSITION)."""

from typing import Any

import numpy as np

from . import arithmetic, checks

__all__ = ["positional_encoding", "token_positions"]


def token_positions(mask_bt: np.ndarray) -> np.ndarray:
    """The position of every token: 0 at the first real token of its row, whatever padding lies to its left.

    `position = max(t - (number of padding tokens before the first real one), 0)`, so padding a row on the left moves nothing.
    mask_bt: boolean, True = real token. Returns int64 `b t`. A row without a real token is numbered 0, all of it.
    """
    checks.check_token_mask("mask", mask_bt.shape, str(mask_bt.dtype))
    first_b1 = np.where(mask_bt.any(axis=1), mask_bt.argmax(axis=1), mask_bt.shape[1])[:, None]
    return np.maximum(np.arange(mask_bt.shape[1]) - first_b1, 0)


def positional_encoding(position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    """`PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`; an odd width ends in a sine.

    position_bt: integers, of any size. Returns `b t d`, computed in float64 and then cast to dtype.
    Raises ValueError where width is less than 1. Source: Vaswani et al. 2017, section 3.5.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    frequency_d = arithmetic.power(10000.0, -2.0 * (np.arange(width) // 2) / width)
    angle_btd = position_bt[..., None] * frequency_d
    encoding_btd = np.empty(angle_btd.shape, dtype)
    encoding_btd[..., 0::2], encoding_btd[..., 1::2] = np.sin(angle_btd[..., 0::2]), np.cos(angle_btd[..., 1::2])
    return encoding_btd
