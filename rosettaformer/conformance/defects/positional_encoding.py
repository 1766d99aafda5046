"""Defects of the positional encoding."""

from typing import Any

import numpy as np

from reference_numpy import positional_encoding

from .defect import Defect

__all__ = ["DEFECTS"]

_encode = positional_encoding.positional_encoding


def _sinusoids(position_bt: Any, width: int, dtype: Any, sine_exponent: Any, cosine_exponent: Any, base: float = 10000.0) -> np.ndarray:
    """Interleaved sines and cosines whose exponents are functions of the pair's index i."""
    column = np.arange(width)
    exponent = np.where(column % 2 == 0, sine_exponent(column // 2), cosine_exponent(column // 2)) / width
    angle = position_bt[..., None] * base**-exponent
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle)).astype(dtype)


def _doubled_exponent(position_bt: Any, width: int, dtype: Any = np.float64) -> np.ndarray:
    return _sinusoids(position_bt, width, dtype, lambda i: 4 * i, lambda i: 4 * i)


def _exponent_per_column(position_bt: Any, width: int, dtype: Any = np.float64) -> np.ndarray:
    return _sinusoids(position_bt, width, dtype, lambda i: 4 * i, lambda i: 4 * i + 2)


def _cosine_one_ahead(position_bt: Any, width: int, dtype: Any = np.float64) -> np.ndarray:
    return _sinusoids(position_bt, width, dtype, lambda i: 2 * i, lambda i: 2 * (i + 1))


def _halves(position_bt: Any, width: int, dtype: Any = np.float64) -> np.ndarray:
    count = (width + 1) // 2
    angle = position_bt[..., None] * 10000.0 ** -(np.arange(count) / max(count - 1, 1))
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)[..., :width].astype(dtype)


def _along_the_batch(position_bt: Any, width: int, dtype: Any = np.float64) -> np.ndarray:
    rows = np.arange(position_bt.shape[0])[:, None]
    return _encode(np.broadcast_to(rows, position_bt.shape), width, dtype)


def _base_1000(position_bt: Any, width: int, dtype: Any = np.float64) -> np.ndarray:
    return _sinusoids(position_bt, width, dtype, lambda i: 2 * i, lambda i: 2 * i, base=1000.0)


def _even_only(position_bt: Any, width: int, dtype: Any = np.float64) -> np.ndarray:
    table = _encode(position_bt, width, dtype)
    table[..., 1::2] = table[..., 1::2] + np.zeros(len(table[0, 0, 0::2]))  # as many cosines as sines
    return table


def _whole_table(position_bt: Any, width: int, dtype: Any = np.float64) -> np.ndarray:
    return _encode(np.arange(50)[None], width, dtype)


def _index_in_the_row(mask_bt: Any) -> np.ndarray:
    return np.broadcast_to(np.arange(mask_bt.shape[1]), mask_bt.shape)


def _defect(id_: str, title: str, evidence: str, function: Any, name: str = "positional_encoding") -> Defect:
    return Defect(id_, title, name, evidence, {f"positional_encoding.{name}": function})


DEFECTS = (
    _defect("PE1", "the exponent is 2i with i already even", "guide, ict1022", _doubled_exponent),
    _defect("PE2", "every column has its own exponent 2j/d", "Kyubyong/transformer#38, jadore801120#32", _exponent_per_column),
    _defect("PE3", "the cosine's exponent is one pair ahead", "SamLynnEvans/Transformer#25", _cosine_one_ahead),
    _defect("PE4", "sines and cosines in two halves, with n-1 timescales", "tensor2tensor#1423, tensorflow/text#1122", _halves),
    _defect("PE5", "positions counted along the batch", "semillero", _along_the_batch),
    _defect("PE7", "base 1000 instead of 10000", "maxjcohen/transformer#62", _base_1000),
    _defect("PE8", "an odd width fails", "guide, ict1022", _even_only),
    _defect("PE10", "the whole table is added, not sliced to the length", "keras_lab", _whole_table),
    _defect("PE11", "left padding is counted as positions", "transformers#7552", _index_in_the_row, "token_positions"),
)
