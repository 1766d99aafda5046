"""Defects of the positional encoding: its frequencies, its columns."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from .alteration import Altered, Variants

__all__ = ["ALTERED", "ENCODING", "VARIANTS"]

ENCODING = "positional_encoding.positional_encoding"


def _frequencies(formula: Callable[[np.ndarray, int], np.ndarray]) -> Callable:
    """Interleaved sines and cosines whose frequencies are a formula of the columns 0 .. d-1 and of d."""

    def altered(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
        column = np.arange(width)
        angle_btd = position_bt[..., None] * formula(column, width)
        return np.where(column % 2 == 0, np.sin(angle_btd), np.cos(angle_btd)).astype(dtype)

    return altered


def _of_base(base: float) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda column, width: arithmetic.power(base, -2.0 * (column // 2) / width)


def _halves(exponent: Callable[[np.ndarray, int], np.ndarray], cosines_first: bool = False) -> Callable:
    """Sines in one half and cosines in the other, with exponents that are a formula of the pairs 0 .. n-1 and of d."""

    def altered(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
        angle = position_bt[..., None] * arithmetic.power(10000.0, -exponent(np.arange((width + 1) // 2), width))
        halves = (np.cos(angle), np.sin(angle)) if cosines_first else (np.sin(angle), np.cos(angle))
        return np.concatenate(halves, axis=-1)[..., :width].astype(dtype)

    return altered


def _timescales(pair: np.ndarray, width: int) -> np.ndarray:
    """`i / (n - 1)`, n = d/2: the last of n timescales is 10000. Of an odd width n is rounded up."""
    return pair / max((width + 1) // 2 - 1, 1)


def _rounded_down(pair: np.ndarray, width: int) -> np.ndarray:
    """The same, with n rounded down."""
    return pair / max(width // 2 - 1, 1)


def _unrounded(pair: np.ndarray, width: int) -> np.ndarray:
    """The same, with n = d/2 as it is."""
    return pair / max(width / 2 - 1, 1)


def _interleaved(exponent: Callable[[np.ndarray, int], np.ndarray]) -> dict[str, Callable]:
    """The paper's columns, with exponents that are a formula of the pairs and of d."""
    return {ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -exponent(column // 2, width)))}


def _of_paper(pair: np.ndarray, width: int) -> np.ndarray:
    """`2i / d`."""
    return 2.0 * pair / width


def _cosine_first(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    column = np.arange(width)
    angle_btd = position_bt[..., None] * _of_base(10000.0)(column, width)
    return np.where(column % 2 == 0, np.cos(angle_btd), np.sin(angle_btd)).astype(dtype)


def _half_precision_angles(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    if not arithmetic.is_half(np.dtype(dtype)):
        return original(position_bt, width, dtype)
    column = np.arange(width)
    frequency = arithmetic.power(10000.0, -2.0 * (column // 2) / width).astype(dtype)
    angle = (position_bt[..., None].astype(dtype) * frequency).astype(np.float32)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle)).astype(dtype)


def _even_only(original: Callable, position_bt: np.ndarray, width: int, dtype: Any = np.float64) -> np.ndarray:
    table = original(position_bt, width, dtype)
    table[..., 1::2] += np.zeros((width + 1) // 2, table.dtype)  # as many cosines as sines
    return table


ALTERED: Altered = {
    "PE1": {ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -4.0 * (column // 2) / width))},
    "PE2": {ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -2.0 * column / width))},
    "PE3": {ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -2.0 * ((column + 1) // 2) / width))},
    "PE4": {ENCODING: _halves(_timescales)},
    "PE6": {ENCODING: _frequencies(lambda column, width: arithmetic.exp((column // 2) * (-math.log(10000.0) / width // 2)))},
    "PE7": {ENCODING: _frequencies(_of_base(1000.0))},
    "PE8": {ENCODING: _even_only},
    "PE12": {},
    "PE20": {ENCODING: _cosine_first},
    "PE21": {ENCODING: _half_precision_angles},
}
VARIANTS: Variants = {
    "PE1": {
        "the exponent is i/d: every pair turns too fast": {
            ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -1.0 * (column // 2) / width))
        },
        "the exponent's sign is lost: 10000^(2i/d) is multiplied": {
            ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, 2.0 * (column // 2) / width))
        },
    },
    "PE2": {
        "every column has its own exponent j/d": {
            ENCODING: _frequencies(lambda column, width: arithmetic.power(10000.0, -1.0 * column / width))
        }
    },
    "PE4": {
        "sines and cosines in two halves, with the paper's exponents 2i/d": {ENCODING: _halves(_of_paper)},
        "cosines and sines in two halves, with n-1 timescales": {ENCODING: _halves(_timescales, cosines_first=True)},
        "cosines and sines in two halves, with the paper's exponents 2i/d": {ENCODING: _halves(_of_paper, cosines_first=True)},
        "sines and cosines in two halves, with exponents i/d": {ENCODING: _halves(lambda pair, width: pair / width)},
        "sines and cosines in two halves, with exponents 4i/d": {ENCODING: _halves(lambda pair, width: 4.0 * pair / width)},
        "interleaved, with n-1 timescales": _interleaved(_timescales),
        "interleaved, with n-1 timescales, n = d/2 rounded down": _interleaved(_rounded_down),
        "interleaved, with n-1 timescales, n = d/2 unrounded": _interleaved(_unrounded),
        "sines and cosines in two halves, with n-1 timescales, n = d/2 rounded down": {ENCODING: _halves(_rounded_down)},
        "sines and cosines in two halves, with n-1 timescales, n = d/2 unrounded": {ENCODING: _halves(_unrounded)},
    },
    "PE7": {f"base {base:.0f} instead of 10000": {ENCODING: _frequencies(_of_base(base))} for base in (100.0, 1e5, 5e5, 1e6)},
}
