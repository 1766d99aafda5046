"""Rotary positions: queries and keys rotate by angles proportional to the position (ROTARY)."""

import math
from typing import Any, NamedTuple

import numpy as np

from . import arithmetic, checks
from .arrays import Array, Gradients
from .config import LayerKind
from .config import TransformerConfig as Config
from .rotary_scaling import RotaryScaling

__all__ = ["rotary_embedding", "rotary_embedding_vjp", "rotary_frequencies"]


class Rotation(NamedTuple):
    """Cosine and sine that rotate every pair of features, at every position."""

    cosine_btj: Array
    sine_btj: Array


def rotary_embedding(x_bthk: Array, position_bt: Array, config: Config, layer: int = 0) -> Array:
    """`y_i = x_i cos(p w_j) - x_l sin(p w_j)`, `y_l = x_l cos(p w_j) + x_i sin(p w_j)`, `b t h k`:
    every pair of features (i, l) rotates by an angle proportional to its token's position p.

    The first n features of each head rotate, in `n/2` pairs j, where n is k times
    `rotary_fraction`; the others are unchanged. `rotary_layout` defines pair j: halves,
    `(i, l) = (j, j + n/2)`; interleaved, `(i, l) = (2j, 2j + 1)`. The frequency w_j follows from
    the base and scaling of the layer's kind. x_bthk: queries or keys. position_bt: integers. layer:
    index in the stack, which determines base and scaling. Half-precision dtypes compute in float32
    and round once. Raises ValueError on other axes. Source: Su et al. 2021, section 3.4.2, eq. 34
    (interleaved); halves: Black et al. 2022, GPT-NeoX.
    """
    checks.check_rotated(x_bthk.shape, position_bt.shape, str(position_bt.dtype), config.key_size)
    kind = config.layer_kind(layer)
    return rotated(x_bthk, rotation(config, kind, position_bt, x_bthk.dtype), config.rotary_layout)


def rotary_embedding_vjp(
    x_bthk: Array, position_bt: Array, config: Config, layer: int = 0, *, cotangent: Array
) -> Gradients:
    """Rotates the cotangent by the opposite angles."""
    turned = rotation(config, config.layer_kind(layer), position_bt, x_bthk.dtype)
    return {"x_bthk": rotated_vjp(turned, config.rotary_layout, cotangent=cotangent)}


def rotary_frequencies(
    size: int, base: float, scaling: RotaryScaling, length: int, dtype: Any = np.float64
) -> Array:
    """`w_j = base^(-2j/n)` for the `n/2` pairs j of n = size features, and their scaling (ROTARY).

    linear: `w / factor` (Chen et al. 2023, section 3). dynamic: beyond the original length the base
    grows to `base (factor length / original - factor + 1)^(n/(n-2))` (bloc97 2023). llama3:
    frequencies are divided by factor if their wavelength exceeds original / low_frequency_factor,
    and kept if it is below original / high_frequency_factor, with a ramp between (Grattafiori et
    al. 2024). yarn: the same, with a ramp over j between the pairs that turn beta_fast and
    beta_slow times within the original length (Peng et al. 2023, section 3.2). longrope:
    `w / short_factors`, and beyond the original length `w / long_factors` (Ding et al. 2024,
    section 4).

    length: of the text, its largest position plus 1. Computed in dtype.
    """
    number = np.dtype(dtype).type
    exponent_j = (np.arange(0, size, 2) / size).astype(dtype)
    if scaling.kind == "dynamic":
        original: Any = scaling.original_length
        factor: Any = scaling.factor
        growth = factor * max(length, original) / original - (factor - 1)
        base = base * growth ** (size / (size - 2))
    wave_j = arithmetic.power(number(base), exponent_j)  # the wavelengths divided by 2 pi
    frequency_j = arithmetic.divide(np.ones_like(wave_j), wave_j)
    if scaling.kind == "linear":
        return arithmetic.divide(frequency_j, number(scaling.factor))
    if scaling.kind == "longrope":
        long = length > scaling.original_length  # type: ignore[operator]
        factors = scaling.long_factors if long else scaling.short_factors
        return arithmetic.divide(frequency_j, np.asarray(factors, dtype))
    if scaling.kind in ("llama3", "yarn"):
        kept_j = kept(size, base, scaling, frequency_j)
        scaled_j = arithmetic.divide(frequency_j, number(scaling.factor))
        return scaled_j * (number(1) - kept_j) + frequency_j * kept_j
    return frequency_j


def kept(size: int, base: float, scaling: Any, frequency_j: Array) -> Array:
    """Returns the unscaled share of each frequency: 0 is fully scaled, 1 is kept."""
    number, length = frequency_j.dtype.type, scaling.original_length
    if scaling.kind == "llama3":
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        turns_j = frequency_j * number(length / (2 * math.pi))
        return np.clip((turns_j - number(low)) / number(high - low), number(0), number(1))

    def pair(turns: float) -> float:
        """Returns the (fractional) pair that turns this often within the original length."""
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    last += 0.001 * (first == last)
    place_j = np.arange(size // 2).astype(frequency_j.dtype)
    ramp_j = (place_j - number(first)) / number(last - first)
    return number(1) - np.clip(ramp_j, number(0), number(1))


def rotation(config: Config, kind: LayerKind, position_bt: Array, dtype: np.dtype) -> Rotation:
    """Cosine and sine of `p w_j`, times attention_factor: `b t j`, at least float32."""
    wide = np.dtype(np.float32) if arithmetic.is_half(dtype) else np.dtype(dtype)
    length = int(position_bt.max(initial=0)) + 1
    frequency_j = rotary_frequencies(config.rotary_size, kind.base, kind.scaling, length, wide)
    angle_btj = arithmetic.times(position_bt[..., None].astype(wide), frequency_j)
    factor = wide.type(kind.scaling.attention_factor or 1)
    return Rotation(arithmetic.cos(angle_btj) * factor, arithmetic.sin(angle_btj) * factor)


def rotated(x_bthk: Array, turned: Rotation, layout: str) -> Array:
    """Rotates the first features of every head in pairs; the others are unchanged."""
    cosine_bt1j, sine_bt1j = (part[:, :, None] for part in turned)
    y_bthk = arithmetic.upcast_half(x_bthk).copy()
    first, second = pairs(layout, cosine_bt1j.shape[-1])
    one, other = y_bthk[..., first].copy(), y_bthk[..., second].copy()
    y_bthk[..., first] = one * cosine_bt1j - other * sine_bt1j
    y_bthk[..., second] = other * cosine_bt1j + one * sine_bt1j
    return y_bthk.astype(x_bthk.dtype, copy=False)


def rotated_vjp(turned: Rotation, layout: str, *, cotangent: Array) -> Array:
    """The gradient of `rotated`: rotation by the opposite angles."""
    return rotated(cotangent, Rotation(turned.cosine_btj, -turned.sine_btj), layout)


def pairs(layout: str, pairs: int) -> tuple[slice, slice]:
    """Returns the first and second feature of every pair, as slices."""
    if layout == "halves":
        return slice(0, pairs), slice(pairs, 2 * pairs)
    return slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
