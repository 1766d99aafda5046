"""Positions, sinusoidal and learned (POSITION)."""

import numpy as np
from numpy.typing import DTypeLike

from . import arithmetic, checks
from .arrays import Array, Gradients, Tree, bounds
from .config import POSITION_STARTS, SINUSOID_LAYOUTS
from .suggestions import known

__all__ = ["position_embedding", "position_embedding_vjp", "positional_encoding", "token_positions"]


def token_positions(mask_bt: Array, start: str = "first_token") -> Array:
    """`position_t = max(t - n, 0)`, with n padding tokens before the first real one: int64 `b t`.

    Position 0 is the first real token, so that left padding changes nothing. mask_bt: boolean, True
    = real token. start: "row" counts from the first token, real or not: `position_t = t`. A row
    without real tokens has only zeros. Raises ValueError on another start.
    """
    checks.check_token_mask("mask", mask_bt.shape, str(mask_bt.dtype))
    known("position start", [start], POSITION_STARTS)
    if start == "row":
        return np.broadcast_to(np.arange(mask_bt.shape[1]), mask_bt.shape)
    first_b1 = np.where(mask_bt.any(axis=1), mask_bt.argmax(axis=1), mask_bt.shape[1])[:, None]
    return np.maximum(np.arange(mask_bt.shape[1]) - first_b1, 0)


def positional_encoding(
    position_bt: Array, width: int, dtype: DTypeLike = np.float64, layout: str = "interleaved"
) -> Array:
    """`PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`, `b t d`.

    layout: "halves" puts all sines before all cosines; an odd width has one more sine.
    "tensor2tensor" does too, with frequencies `10000^(-i/(n-1))` of n = d // 2 pairs; an odd width
    ends in a zero. position_bt: integers of any size. Computed in float64, then cast to dtype.
    Raises ValueError if width is less than 1, and on another layout. Source: Vaswani et al. 2017,
    section 3.5; the layouts: published code, Marian and tensor2tensor.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    known("sinusoid layout", [layout], SINUSOID_LAYOUTS)
    pairs, last = (width + 1) // 2, width / 2
    if layout == "tensor2tensor":
        pairs, last = width // 2, max(width // 2 - 1, 1)
    angle_btn = position_bt[..., None] * arithmetic.power(10000.0, -np.arange(pairs) / last)
    encoding_btd = np.zeros((*position_bt.shape, width), dtype)
    sines, cosines = slice(pairs), slice(pairs, 2 * pairs)
    if layout == "interleaved":
        sines, cosines = slice(0, None, 2), slice(1, None, 2)
    encoding_btd[..., sines] = np.sin(angle_btn)
    encoding_btd[..., cosines] = np.cos(angle_btn[..., : width // 2])
    return encoding_btd


def position_embedding(parameters: Tree, position_bt: Array, offset: int) -> Array:
    """`x = table[position + offset]`, `b t d`: rows of a learned table.

    parameters: table `p d`. position_bt: integers from 0 to p - offset - 1. Raises ValueError on
    other values and axes. Source: Gehring et al. 2017, section 3.1; Devlin et al. 2019, section 3;
    the offset: Liu et al. 2019 (RoBERTa).
    """
    kind, rows = str(position_bt.dtype), len(parameters["table"]) - offset
    checks.check_rows("position", position_bt.shape, kind, rows, *bounds(position_bt))
    return parameters["table"][position_bt + offset]


def position_embedding_vjp(
    parameters: Tree, position_bt: Array, offset: int, *, cotangent: Array
) -> Gradients:
    """`dtable[p] = sum_(position + offset = p) g`: the sum over the uses of row p."""
    rows = len(parameters["table"])
    return {"parameters": {"table": arithmetic.scatter_add(cotangent, position_bt + offset, rows)}}
