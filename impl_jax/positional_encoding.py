"""Positions, sinusoidal and learned (POSITION)."""

from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.typing import Dtype

from reference_numpy import checks
from reference_numpy.config import POSITION_STARTS, SINUSOID_LAYOUTS
from reference_numpy.suggestions import known

from . import mask
from .framework import id_bounds, is_traced, take_rows
from .precision import upcast_half
from .values import Own

__all__ = ["PositionEmbedding", "positional_encoding", "token_positions"]


def token_positions(mask_bt: jax.Array, start: str = "first_token") -> jax.Array:
    """`position_t = max(t - n, 0)`, with n padding tokens before the first real one: `b t`.

    start: "row" counts from the first token, real or not: `position_t = t`. Integers have JAX's
    default: int32, or int64 under jax_enable_x64. Raises ValueError on another start.
    """
    mask.check("mask", mask_bt)
    known("position start", [start], POSITION_STARTS)
    length = mask_bt.shape[1]
    if start == "row":
        return jnp.arange(length) + jnp.zeros_like(mask_bt, int)  # sharded like the mask
    first_b1 = jnp.where(
        mask_bt.any(axis=1, keepdims=True), mask_bt.argmax(axis=1, keepdims=True), length
    )
    return jnp.maximum(jnp.arange(length) - first_b1, 0)


def positional_encoding(
    position_bt: jax.Array | np.ndarray,
    width: int,
    dtype: Dtype = jnp.float32,
    layout: str = "interleaved",
) -> jax.Array:
    """`PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`, `b t d`.

    layout: "halves" puts all sines before all cosines; an odd width has one more sine.
    "tensor2tensor" does too, with frequencies `10000^(-i/(n-1))` of n = d // 2 pairs; an odd width
    ends in a zero. Angles are float64 whatever jax_enable_x64 says. NumPy computes concrete
    positions once, while tracing; traced positions put float64 operations into the program.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    known("sinusoid layout", [layout], SINUSOID_LAYOUTS)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    traced = is_traced(position_bt)
    xp = jnp if traced else np
    pairs, last = (width + 1) // 2, width / 2
    if layout == "tensor2tensor":
        pairs, last = width // 2, max(width // 2 - 1, 1)
    frequency_n = 10000.0 ** (-np.arange(pairs) / last)
    with jax.enable_x64(True):
        angle_btn = (position_bt if traced else np.asarray(position_bt))[..., None] * frequency_n
        waves = xp.sin(angle_btn), xp.cos(angle_btn)
        if layout == "interleaved":
            encoding_btd = xp.stack(waves, axis=-1).reshape(*position_bt.shape, 2 * pairs)
        else:
            zero_bt1 = xp.zeros((*position_bt.shape, 1))
            encoding_btd = xp.concatenate([*waves, zero_bt1], axis=-1)
        return jnp.asarray(encoding_btd[..., :width].astype(dtype))


class PositionEmbedding(nnx.Module):
    """`x = table[position + offset]`, `b t d`: rows of a learned table; see `Embedding`."""

    def __init__(self, rows: int, width: int, offset: int, **own: Unpack[Own]) -> None:
        normal, dtype = nnx.initializers.normal(width**-0.5), own.get("param_dtype", jnp.float32)
        self.table = nnx.Param(normal(own["rngs"].params(), (rows, width), dtype))
        self.offset, self.dtype = offset, own.get("dtype")

    def __call__(self, position_bt: jax.Array) -> jax.Array:
        rows, kind = self.table.shape[0] - self.offset, str(position_bt.dtype)
        checks.check_rows("position", position_bt.shape, kind, rows, *id_bounds(position_bt))
        # A negative position must not reach the rows before the offset.
        position_bt = jnp.where(position_bt < 0, -1 - self.offset, position_bt)
        table_pd = self.table[...].astype(self.dtype or self.table.dtype)
        return take_rows(upcast_half(table_pd), position_bt + self.offset).astype(table_pd.dtype)
