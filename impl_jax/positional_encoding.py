"""Sinusoidal positions (POSITION)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype

from reference_numpy import checks

from .framework import is_traced

__all__ = ["positional_encoding", "token_positions"]


def token_positions(mask_bt: jax.Array) -> jax.Array:
    """The position of every token: 0 at the first real token of its row, whatever padding lies to its left.

    `position = max(t - (number of padding tokens before the first real one), 0)`. The integers are JAX's default: int32, or int64 where
    jax_enable_x64 is set.
    """
    checks.check_token_mask("mask", mask_bt.shape, str(mask_bt.dtype))
    length = mask_bt.shape[1]
    first_b1 = jnp.where(mask_bt.any(axis=1, keepdims=True), mask_bt.argmax(axis=1, keepdims=True), length)
    return jnp.maximum(jnp.arange(length) - first_b1, 0)


def positional_encoding(position_bt: jax.Array | np.ndarray, width: int, dtype: Dtype = jnp.float32) -> jax.Array:
    """`PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`; an odd width ends in a sine.

    The angles are float64 whatever jax_enable_x64 says, so every integer position is exact to the last digit of dtype: concrete positions
    are computed by NumPy, once, when a program is traced; traced ones by the program, which then holds float64 operations.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    traced = is_traced(position_bt)
    xp = jnp if traced else np
    frequency_d = 10000.0 ** (-2.0 * (np.arange(width) // 2) / width)
    with jax.enable_x64(True):
        angle_btd = (position_bt if traced else np.asarray(position_bt))[..., None] * frequency_d
        encoding_btd = xp.where(np.arange(width) % 2 == 0, xp.sin(angle_btd), xp.cos(angle_btd))
        return jnp.asarray(encoding_btd.astype(dtype))
