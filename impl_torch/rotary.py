"""Rotary positions: queries and keys rotate by angles proportional to the position (ROTARY)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_numpy import TransformerConfig, checks
from reference_numpy.config import LayerKind
from reference_numpy.rotary_scaling import RotaryScaling

from . import precision

__all__ = ["rotary_embedding", "rotary_frequencies"]

Turning = tuple[bool, float, RotaryScaling]  # a `LayerKind` without its window


class Rotation(NamedTuple):
    """Cosine and sine that rotate every pair of features, at every position."""

    cosine_btj: Tensor
    sine_btj: Tensor


def rotary_embedding(
    x_bthk: Tensor, position_bt: Tensor, config: TransformerConfig, layer: int = 0
) -> Tensor:
    """`y_i = x_i cos(p w_j) - x_l sin(p w_j)`, `y_l = x_l cos(p w_j) + x_i sin(p w_j)`, `b t h k`:
    every pair of features (i, l) rotates by an angle proportional to its token's position p.

    Half-precision dtypes compute in float32. A model computes cosine and sine once for all layers.
    """
    kind = precision.dtype_name(position_bt.dtype)
    checks.check_rotated(x_bthk.shape, position_bt.shape, kind, config.key_size)
    turned = rotation(config, config.layer_kind(layer), position_bt, x_bthk.dtype)
    return rotated(x_bthk, turned, config.rotary_layout)


def rotary_frequencies(
    size: int,
    base: float,
    scaling: RotaryScaling,
    length: int | Tensor,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> Tensor:
    """`w_j = base^(-2j/n)` for the `n/2` pairs j of n = size features, and their scaling (ROTARY).

    Computed in float64 on the device, then cast: in bfloat16, angles of distant tokens would be off
    by more than a turn. length: a tensor if one graph must serve every length.
    """
    chosen: Any = scaling
    exponent_j = torch.arange(0, size, 2, dtype=torch.float64, device=device) / size
    if chosen.kind == "dynamic":
        original, factor = chosen.original_length, chosen.factor
        longest = torch.as_tensor(length, dtype=torch.float64, device=device).clamp(min=original)
        growth = factor * longest / original - (factor - 1)
        return ((base * growth ** (size / (size - 2))) ** -exponent_j).to(dtype)
    frequency_j = torch.pow(base, -exponent_j)
    if chosen.kind == "linear":
        frequency_j = frequency_j / chosen.factor
    elif chosen.kind == "longrope":
        long_j, short_j = map(frequency_j.new_tensor, (chosen.long_factors, chosen.short_factors))
        long = torch.as_tensor(length, device=device) > chosen.original_length
        frequency_j = frequency_j / torch.where(long, long_j, short_j)
    elif chosen.kind in ("llama3", "yarn"):
        kept_j = _kept(size, base, chosen, frequency_j)
        frequency_j = torch.lerp(frequency_j / chosen.factor, frequency_j, kept_j)
    return frequency_j.to(dtype)


def _kept(size: int, base: float, scaling: Any, frequency_j: Tensor) -> Tensor:
    """Returns the unscaled share of each frequency: 0 is fully scaled, 1 is kept."""
    length = scaling.original_length
    if scaling.kind == "llama3":
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        return ((frequency_j * (length / (2 * math.pi)) - low) / (high - low)).clamp(0, 1)

    def pair(turns: float) -> float:
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    last += 0.001 * (first == last)
    place_j = torch.arange(size // 2, dtype=frequency_j.dtype, device=frequency_j.device)
    return 1 - ((place_j - first) / (last - first)).clamp(0, 1)


def rotation(
    config: TransformerConfig, kind: LayerKind, position_bt: Tensor, dtype: torch.dtype
) -> Rotation:
    """Cosine and sine of `p w_j`, times attention_factor: `b t j`, at least float32."""
    length: int | Tensor = 1
    if kind.scaling.by_length:
        length = F.pad(position_bt, (0, 1, 0, 1)).amax(dim=(0, 1)) + 1  # 1 without positions
    wide = torch.promote_types(dtype, torch.float32)
    given = kind.base, kind.scaling, length, wide, position_bt.device
    angle_btj = position_bt[..., None] * rotary_frequencies(config.rotary_size, *given)
    cosine_btj, sine_btj = angle_btj.cos(), angle_btj.sin()
    if kind.scaling.attention_factor is None:
        return Rotation(cosine_btj, sine_btj)
    factor = kind.scaling.attention_factor
    return Rotation(cosine_btj * factor, sine_btj * factor)


def by_layer(
    config: TransformerConfig, layers: int, of_kind: Callable[[LayerKind], Rotation]
) -> list[Rotation | None]:
    """Returns the rotation of every layer, None for those without; layers of a kind share one.

    of_kind: returns the rotation of a kind.
    """
    kinds = [config.layer_kind(layer) for layer in range(layers)]
    found = {turning(kind): kind for kind in kinds if kind.rotary}
    rotations = {turned: of_kind(kind) for turned, kind in found.items()}
    return [rotations.get(turning(kind)) for kind in kinds]


def turning(kind: LayerKind) -> Turning:
    """Returns the properties of a layer kind that determine its rotation."""
    return kind.rotary, kind.base, kind.scaling


def rotated(x_bthk: Tensor, rotation: Rotation | None, layout: str) -> Tensor:
    """Rotates the first features of every head in pairs. rotation None: returns x unchanged."""
    if rotation is None:
        return x_bthk
    cosine_bt1j, sine_bt1j = (part[:, :, None] for part in rotation)
    wide_bthk, size = precision.upcast_half(x_bthk), 2 * cosine_bt1j.shape[-1]
    turning, rest = wide_bthk[..., :size], wide_bthk[..., size:]
    halves = layout == "halves"
    one, other = turning.chunk(2, dim=-1) if halves else (turning[..., 0::2], turning[..., 1::2])
    parts = [
        torch.addcmul(one * cosine_bt1j, other, sine_bt1j, value=-1),
        torch.addcmul(other * cosine_bt1j, one, sine_bt1j),
    ]
    if not halves:
        parts = [torch.stack(parts, dim=-1).flatten(-2)]
    if rest.shape[-1]:
        parts.append(rest)
    return (torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]).to(x_bthk.dtype)
