"""Positions, sinusoidal and learned (POSITION)."""

import numpy as np
import tensorflow as tf

from reference_numpy import checks
from reference_numpy.config import POSITION_STARTS, SINUSOID_LAYOUTS
from reference_numpy.suggestions import known

from . import mask
from .embedding import Table
from .framework import id_bounds, register

__all__ = ["PositionEmbedding", "positional_encoding", "token_positions"]


def token_positions(mask_bt: tf.Tensor, start: str = "first_token") -> tf.Tensor:
    """`position_t = max(t - n, 0)`, with n padding tokens before the first real one: int64 `b t`.

    start: "row" counts from the first token, real or not: `position_t = t`. A row without real
    tokens has only zeros. Raises ValueError on another start.
    """
    mask.check("mask", mask_bt)
    known("position start", [start], POSITION_STARTS)
    length = tf.shape(mask_bt, out_type=tf.int64)[1]
    if start == "row":
        return tf.broadcast_to(tf.range(length), tf.shape(mask_bt))
    first_b1 = tf.reduce_min(tf.where(mask_bt, tf.range(length), length), axis=1, keepdims=True)
    return tf.maximum(tf.range(length) - first_b1, 0)


def positional_encoding(
    position_bt: tf.Tensor, width: int, dtype: tf.DType = tf.float64, layout: str = "interleaved"
) -> tf.Tensor:
    """`PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`, `b t d`.

    layout: "halves" puts all sines before all cosines; an odd width has one more sine.
    "tensor2tensor" does too, with frequencies `10000^(-i/(n-1))` of n = d // 2 pairs; an odd width
    ends in a zero. Each pair of columns shares one angle; a reshape interleaves them. Computed in
    float64, then cast to dtype. Raises ValueError if width is less than 1, and on another layout.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    known("sinusoid layout", [layout], SINUSOID_LAYOUTS)
    pairs, last = (width + 1) // 2, width / 2
    if layout == "tensor2tensor":
        pairs, last = width // 2, max(width // 2 - 1, 1)
    frequency_n = 10000.0 ** (-np.arange(pairs) / last)
    angle = tf.cast(position_bt, tf.float64)[..., tf.newaxis] * frequency_n
    if layout == "interleaved":
        shape = tf.concat([tf.shape(position_bt), [2 * pairs]], axis=0)
        encoding = tf.reshape(tf.stack([tf.sin(angle), tf.cos(angle)], axis=-1), shape)
    else:
        zero = tf.zeros_like(tf.cast(position_bt, tf.float64))[..., tf.newaxis]
        encoding = tf.concat([tf.sin(angle), tf.cos(angle), zero], axis=-1)
    return tf.cast(encoding[..., :width], dtype)


@register
class PositionEmbedding(Table):
    """`x = table[position + offset]`, `b t d`: rows of a learned table.

    Like ids of Embedding, positions out of range raise ValueError if their values are known.
    """

    def __init__(self, rows: int, width: int, offset: int, **kwargs: object) -> None:
        super().__init__(rows, width, **kwargs)
        self.offset = offset

    def check_ids(self, position_bt: tf.Tensor, **_: object) -> None:
        """Raises ValueError on positions outside the table, other dtypes and other axes."""
        rows, bounds = self.rows - self.offset, id_bounds(position_bt)
        checks.check_rows("position", position_bt.shape, position_bt.dtype.name, rows, *bounds)

    def call(self, position_bt: tf.Tensor) -> tf.Tensor:
        self.check_ids(position_bt)
        return self.look_up(position_bt + self.offset if self.offset else position_bt)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "offset": self.offset}
