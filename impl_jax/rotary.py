"""Rotary positions: queries and keys rotate by angles proportional to the position (ROTARY)."""

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks
from reference_numpy.config import LayerKind
from reference_numpy.rotary_scaling import RotaryScaling

from .framework import aligned
from .precision import upcast_dtype, upcast_half

__all__ = ["rotary_embedding", "rotary_frequencies"]

Length = int | jax.Array  # length of a text


class Rotation(NamedTuple):
    """Cosine and sine that rotate every pair of features, at every position."""

    cosine_btj: jax.Array
    sine_btj: jax.Array


def rotary_embedding(
    x_bthk: jax.Array, position_bt: jax.Array, config: TransformerConfig, layer: int = 0
) -> jax.Array:
    """`y_i = x_i cos(p w_j) - x_l sin(p w_j)`, `y_l = x_l cos(p w_j) + x_i sin(p w_j)`, `b t h k`:
    every pair of features (i, l) rotates by an angle proportional to its token's position p.

    The first n = rotary_fraction k features rotate, in pairs by rotary_layout: halves,
    `(j, j + n/2)`; interleaved, `(2j, 2j + 1)`. Half-precision dtypes compute in float32, rounding
    once.
    """
    kind = str(position_bt.dtype)
    checks.check_rotated(x_bthk.shape, position_bt.shape, kind, config.key_size)
    turned = rotation(config, config.layer_kind(layer), position_bt, x_bthk.dtype)
    return rotated(x_bthk, turned, config.rotary_layout)


def rotary_frequencies(
    size: int, base: float, scaling: RotaryScaling, length: Length, dtype: Dtype = jnp.float32
) -> jax.Array:
    """`w_j = base^(-2j/n)` for the `n/2` pairs j of n = size features, and their scaling (ROTARY).

    length: of the text, its largest position plus 1; only some kinds read it, and it may be traced.
    Computed in float64, whatever jax_enable_x64 says, and rounded to dtype once.
    """
    dtype, given = jax.dtypes.canonicalize_dtype(dtype), cast(Any, scaling)  # has its fields set
    factor, original = given.factor, given.original_length
    exponent_j = np.arange(0, size, 2) / size
    with jax.enable_x64(True):
        frequency_j: Any = 1 / base**exponent_j
        if scaling.kind == "linear":
            frequency_j = frequency_j / factor
        elif scaling.kind == "dynamic":
            growth = factor * jnp.maximum(length, original) / original - (factor - 1)
            frequency_j = 1 / (base * growth ** (size / (size - 2))) ** exponent_j
        elif scaling.kind == "longrope":
            short, long = np.asarray(given.short_factors), np.asarray(given.long_factors)
            frequency_j = jnp.where(length > original, frequency_j / long, frequency_j / short)
        elif scaling.kind in ("llama3", "yarn"):
            kept_j = _kept(size, base, given, frequency_j)
            frequency_j = frequency_j / factor * (1 - kept_j) + frequency_j * kept_j
        return jnp.asarray(frequency_j, dtype)


def _kept(size: int, base: float, scaling: Any, frequency_j: np.ndarray) -> np.ndarray:
    """Returns the unscaled share of each frequency: 0 is fully scaled, 1 is kept."""
    length = scaling.original_length
    if scaling.kind == "llama3":
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        return np.clip((frequency_j * length / (2 * math.pi) - low) / (high - low), 0, 1)

    def pair(turns: float) -> float:
        """Returns the (fractional) pair that turns this often within the original length."""
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
    position_bt: jax.Array,
    dtype: Dtype,
    length: Length | None = None,
) -> Rotation:
    """Cosine and sine of `p w_j`, times attention_factor: `b t j`, at least float32.

    length: of the text, default its largest position plus 1.
    """
    wide = upcast_dtype(dtype)
    if length is None:
        length = position_bt.max(initial=0) + 1 if kind.scaling.by_length else 0
    frequency_j = rotary_frequencies(config.rotary_size, kind.base, kind.scaling, length, wide)
    angle_btj = position_bt[..., None].astype(wide) * frequency_j
    factor = kind.scaling.attention_factor or 1
    return Rotation(jnp.cos(angle_btj) * factor, jnp.sin(angle_btj) * factor)


def rotated(x_bthk: jax.Array, rotation: Rotation | None, layout: str) -> jax.Array:
    """Rotates the first features of every head in pairs; the others are unchanged. None: returns x.

    `x cos + other sin`, where other holds the partner of each feature: one pass over x.
    """
    if rotation is None:
        return x_bthk
    x, size = upcast_half(x_bthk), 2 * rotation.cosine_btj.shape[-1]
    whole = size == x.shape[-1]
    x_bthn = x if whole else x[..., :size]
    cosine_bt1j, sine_bt1j = (part[:, :, None] for part in rotation)
    if layout == "halves":
        other_bthn = jnp.roll(x_bthn, size // 2, axis=-1)
        cosine_bt1n = jnp.concatenate([cosine_bt1j, cosine_bt1j], axis=-1)
        sine_bt1n = jnp.concatenate([-sine_bt1j, sine_bt1j], axis=-1)
    else:
        pairs = x_bthn.reshape((*x_bthn.shape[:-1], -1, 2))
        other_bthn = pairs[..., ::-1].reshape(x_bthn.shape)
        cosine_bt1n = jnp.repeat(cosine_bt1j, 2, axis=-1)
        sine_bt1n = jnp.stack([-sine_bt1j, sine_bt1j], axis=-1).reshape(cosine_bt1n.shape)
    y_bthn = x_bthn * aligned(cosine_bt1n, x_bthn) + other_bthn * aligned(sine_bt1n, x_bthn)
    y = y_bthn if whole else jnp.concatenate([y_bthn, x[..., size:]], axis=-1)
    return y.astype(x_bthk.dtype)
