"""Sinusoidal positions (POSITION)."""

import numpy as np
import tensorflow as tf

from reference_numpy import checks

__all__ = ["positional_encoding", "token_positions"]


def token_positions(mask_bt: tf.Tensor) -> tf.Tensor:
    """`position = max(t - (number of padding tokens before the first real one), 0)`, int64 `b t`.

    A row without a real token is numbered 0, all of it.
    """
    checks.check_token_mask("mask", mask_bt.shape, mask_bt.dtype.name)
    length = tf.shape(mask_bt, out_type=tf.int64)[1]
    first_b1 = tf.reduce_min(tf.where(mask_bt, tf.range(length), length), axis=1, keepdims=True)
    return tf.maximum(tf.range(length) - first_b1, 0)


def positional_encoding(position_bt: tf.Tensor, width: int, dtype: tf.DType = tf.float64) -> tf.Tensor:
    """`PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`; an odd width ends in a sine.

    Sine and cosine are taken once for each pair of columns and interleaved by a reshape. Computed in float64 and then cast to dtype.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    frequency = 10000.0 ** (-2.0 * np.arange((width + 1) // 2) / width)
    angle = tf.cast(position_bt, tf.float64)[..., tf.newaxis] * frequency
    pairs = tf.stack([tf.sin(angle), tf.cos(angle)], axis=-1)
    table_btd = tf.reshape(pairs, tf.concat([tf.shape(position_bt), [2 * len(frequency)]], axis=0))[..., :width]
    return tf.cast(table_btd, dtype)
