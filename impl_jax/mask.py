"""Masks: boolean, True = may attend, broadcastable to b h t s (MASK)."""

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from reference_numpy import checks

from .framework import Array

__all__ = ["causal_mask", "combine_masks", "padding_mask", "real_rows", "token_mask", "window_mask"]

M = TypeVar("M", jax.Array, jax.Array | None)


def token_mask(token: jax.Array, padding_id: int | None) -> jax.Array:
    """`mask = token != padding_id`, `b t`; all True without a padding id or for one-hot rows."""
    if padding_id is None or token.ndim == 3:
        return jnp.ones(token.shape[:2], dtype=bool)
    return jnp.not_equal(token, padding_id)


def check(name: str, mask_bt: Array | None, tokens: Sequence[int] | None = None) -> None:
    """Raises ValueError if a token mask, boolean `b t`, does not match the tokens."""
    if mask_bt is not None:
        checks.check_token_mask(name, mask_bt.shape, str(mask_bt.dtype), tokens)


def padding_mask(mask_bs: M) -> M:
    """Turns a mask of real tokens, `b s`, into `b 1 1 s`: no query may attend to padding."""
    check("mask", mask_bs)
    return mask_bs if mask_bs is None else mask_bs[:, None, None, :]


def causal_mask(target_length: int, source_length: int) -> jax.Array:
    """Query i may attend to key j if `j <= i + (s - t)` (CAUSAL): `1 1 t s`. Lengths are static."""
    mask_ts = jnp.tri(target_length, source_length, source_length - target_length, dtype=bool)
    return mask_ts[None, None]


def window_mask(target_length: int, source_length: int, window: int) -> jax.Array:
    """Query i may attend to key j if `|i + (s - t) - j| < window` (WINDOW): `1 1 t s`.

    With causality a query sees itself and the `window - 1` keys before it. Raises ValueError if
    window is less than 1.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1; got {window}")
    query_t1 = jnp.arange(target_length)[:, None] + source_length - target_length
    return (jnp.abs(query_t1 - jnp.arange(source_length)) < window)[None, None]


def combine_masks(mask_bhts: jax.Array | None, other_bhts: jax.Array | None) -> jax.Array | None:
    """`mask & other`; None allows everything. A floating mask becomes -inf where other is False."""
    if mask_bhts is None or other_bhts is None:
        return other_bhts if mask_bhts is None else mask_bhts
    if jnp.issubdtype(mask_bhts.dtype, jnp.floating):
        return jnp.where(other_bhts, mask_bhts, -jnp.inf)
    return jnp.logical_and(mask_bhts, other_bhts)


def real_rows(logits_btv: jax.Array, mask_bt: jax.Array) -> jax.Array:
    """Zeroes the logits at padding (PADDING). mask_bt: True = real token."""
    return jnp.where(mask_bt[..., None], logits_btv, 0)
