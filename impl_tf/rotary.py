"""Rotary positions: queries and keys rotate by angles proportional to the position (ROTARY)."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.config import LayerKind
from reference_numpy.rotary_scaling import RotaryScaling

from .framework import sizes
from .precision import upcast_half, wide

__all__ = ["rotary_embedding", "rotary_frequencies"]


class Rotation(tf.experimental.ExtensionType):
    """Cosine and sine that rotate every pair of features, at every position.

    An extension type is one value to Keras and is passed by name; Keras would cast the tensors of a
    tuple to the compute dtype of the called layer.
    """

    cosine_btj: tf.Tensor
    sine_btj: tf.Tensor


def rotary_embedding(
    x_bthk: tf.Tensor, position_bt: tf.Tensor, config: TransformerConfig, layer: int = 0
) -> tf.Tensor:
    """`y_i = x_i cos(p w_j) - x_l sin(p w_j)`, `y_l = x_l cos(p w_j) + x_i sin(p w_j)`, `b t h k`:
    every pair of features (i, l) rotates by an angle proportional to its token's position p.

    position_bt: integers, `b t` or `1 t`. Half precision rotates in float32 and rounds once.
    Raises ValueError on other axes.
    """
    checks.check_rotated(x_bthk.shape, position_bt.shape, position_bt.dtype.name, config.key_size)
    turned = rotation(config, config.layer_kind(layer), position_bt, x_bthk.dtype)
    return rotated(x_bthk, turned, config.rotary_layout)


def rotary_frequencies(
    size: int,
    base: float,
    scaling: RotaryScaling,
    length: int | tf.Tensor,
    dtype: tf.DType = tf.float64,
) -> tf.Tensor:
    """`w_j = base^(-2j/n)` for the `n/2` pairs j of n = size features, and their scaling (ROTARY).

    A constant unless it depends on the length. length: of the text, its largest position plus 1,
    may be a scalar tensor. Computed in float64, then cast to dtype.
    """
    exponent_j = np.arange(0, size, 2) / size
    original: Any = scaling.original_length
    factor: Any = scaling.factor
    if scaling.kind == "dynamic":
        longest = tf.cast(tf.maximum(length, original), tf.float64)
        growth = factor * longest / original - (factor - 1)
        return tf.cast((base * growth ** (size / (size - 2))) ** -exponent_j, dtype)
    frequency_j = base**-exponent_j
    if scaling.kind == "longrope":
        long_j = tf.constant(frequency_j / np.asarray(scaling.long_factors), dtype)
        short_j = tf.constant(frequency_j / np.asarray(scaling.short_factors), dtype)
        return tf.where(length > original, long_j, short_j)
    if scaling.kind == "linear":
        frequency_j = frequency_j / factor
    elif scaling.kind in ("llama3", "yarn"):
        kept_j = _kept(size, base, scaling, frequency_j)
        frequency_j = frequency_j / factor * (1 - kept_j) + frequency_j * kept_j
    return tf.constant(frequency_j, dtype)


def _kept(size: int, base: float, scaling: Any, frequency_j: np.ndarray) -> np.ndarray:
    """Returns the unscaled share of each frequency: 0 is fully scaled, 1 is kept.

    llama3: by how often a pair turns within the original length. yarn: by its place between the
    pairs that turn beta_fast and beta_slow times.
    """
    length = scaling.original_length
    if scaling.kind == "llama3":
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        turns_j = frequency_j * length / (2 * math.pi)
        return np.clip((turns_j - low) / (high - low), 0, 1)

    def pair(turns: float) -> float:
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    last += 0.001 * (first == last)
    return 1 - np.clip((np.arange(size // 2) - first) / (last - first), 0, 1)


def rotation(
    config: TransformerConfig,
    kind: LayerKind,
    position_bt: tf.Tensor,
    dtype: tf.DType,
    length: tf.Tensor | None = None,
) -> Rotation:
    """Cosine and sine of `p w_j`, times attention_factor: `b t j`, at least float32.

    length: of the text, default its largest position plus 1.
    """
    dtype = wide(dtype)
    if length is None and kind.scaling.by_length:
        length = tf.reduce_max(position_bt) + 1
    frequency_j = rotary_frequencies(config.rotary_size, kind.base, kind.scaling, length, dtype)
    angle_btj = tf.expand_dims(tf.cast(position_bt, dtype), -1) * frequency_j
    factor = kind.scaling.attention_factor or 1
    return Rotation(tf.cos(angle_btj) * factor, tf.sin(angle_btj) * factor)


def rotated(x_bthk: tf.Tensor, rotation: Rotation | None, layout: str) -> tf.Tensor:
    """Rotates the first features of every head in pairs; the others are unchanged. None: returns x.

    A pair is an axis of size 2 whose features swap places, which on a CPU is faster than splitting
    and joining them.
    """
    if rotation is None:
        return x_bthk
    size, axis = 2 * rotation.cosine_btj.shape[-1], 3 if layout == "halves" else 4
    x_bthn, rest_bthm = x_bthk[..., :size], x_bthk[..., size:]
    shape = *sizes(x_bthn)[:3], size // 2
    pairs = upcast_half(tf.reshape(x_bthn, [*shape[:axis], 2, *shape[axis:]]))
    cosine_bt1j, sine_bt1j = (
        part_btj[:, :, tf.newaxis] for part_btj in (rotation.cosine_btj, rotation.sine_btj)
    )
    kept = pairs * tf.expand_dims(cosine_bt1j, axis)
    crossed = tf.reverse(pairs, [axis]) * tf.stack([-sine_bt1j, sine_bt1j], axis)
    y_bthn = tf.cast(tf.reshape(kept + crossed, sizes(x_bthn)), x_bthk.dtype)
    return tf.concat([y_bthn, rest_bthm], axis=-1) if rest_bthm.shape[-1] else y_bthn
