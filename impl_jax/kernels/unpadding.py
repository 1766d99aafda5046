"""Unpadding: flat tokens of all rows without padding; only attention sees rows (PADDING)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..framework import Array
from ..values import Heads, Mask

__all__ = ["PaddedMask", "Tokens", "counted", "in_rows", "pad", "unpad"]


class Tokens(NamedTuple):
    """Maps rows `b t` to n flat tokens, `1 n`.

    index_n: the position of each flat token among all `b * t`, 0 for the filler at the end; None if
    all positions are flat, in order. place_bt: the place of each position, 0 if it has none.
    mask_bt: True = has a flat token.
    """

    index_n: Any
    place_bt: Any
    mask_bt: Array


class PaddedMask(NamedTuple):
    """Replaces `mask_bhts` in an unpadded run: a mask of rows, and the flat queries and keys."""

    mask_bhts: Mask
    query: Tokens
    key: Tokens


def in_rows(attention: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Decorates `attention(heads, mask, ...)`, which needs rows, to accept flat heads: if the mask
    is a `PaddedMask`, heads and output are flat.
    """

    @functools.wraps(attention)
    def call(module: Any, heads: Heads, mask: Any = None, *others: Any) -> jax.Array:
        if not isinstance(mask, PaddedMask):
            return attention(module, heads, mask, *others)
        mask_bhts, query, key = mask
        query_bthk, key_bsgk, value_bsge, sink_h = heads
        rows = Heads(pad(query_bthk, query), pad(key_bsgk, key), pad(value_bsge, key), sink_h)
        return unpad(attention(module, rows, mask_bhts, *others), query)

    return call


def unpad(x_btd: jax.Array, tokens: Tokens) -> jax.Array:
    """Flattens rows `b t d`, with any axes for d, to tokens `1 n d`.

    Its gradient is `pad`, a gather: every token occurs once, and nothing reads the filler.
    """
    if tokens.index_n is None:
        return jax.lax.collapse(x_btd, 0, 2)[None]
    return _unpad(tokens, x_btd)


def pad(x_1nd: jax.Array, tokens: Tokens) -> jax.Array:
    """Restores rows `b t d` from flat tokens; zeros at positions without one.

    Its gradient is `unpad`, with zeros for the filler.
    """
    if tokens.index_n is None:
        return x_1nd.reshape(tokens.mask_bt.shape + x_1nd.shape[2:])
    return _pad(tokens, x_1nd)


def counted(mask_bt: jax.Array, tokens: Tokens) -> jax.Array:
    """Flattens a mask to `1 n`; False for the filler."""
    mask_1n = unpad(mask_bt, tokens)
    return mask_1n if tokens.index_n is None else mask_1n & _is_token(tokens)


@jax.custom_vjp
def _unpad(tokens: Tokens, x_btd: jax.Array) -> jax.Array:
    return jnp.take(jax.lax.collapse(x_btd, 0, 2), tokens.index_n, axis=0, mode="clip")[None]


@jax.custom_vjp
def _pad(tokens: Tokens, x_1nd: jax.Array) -> jax.Array:
    mask_bt1 = jnp.expand_dims(tokens.mask_bt, tuple(range(2, x_1nd.ndim)))
    return jnp.where(mask_bt1, jnp.take(x_1nd[0], tokens.place_bt, axis=0, mode="clip"), 0)


def _pad_gradient(tokens: Tokens, g_btd: jax.Array) -> jax.Array:
    is_token_1n1 = jnp.expand_dims(_is_token(tokens), tuple(range(2, g_btd.ndim)))
    return jnp.where(is_token_1n1, _unpad(tokens, g_btd), 0)


def _is_token(tokens: Tokens) -> jax.Array:
    """Mask of the flattened positions, `1 n`: True for tokens, False for the filler."""
    place_1n, mask_1n = (_unpad(tokens, x_bt) for x_bt in (tokens.place_bt, tokens.mask_bt))
    return mask_1n & (place_1n == jnp.arange(place_1n.shape[1]))


_unpad.defvjp(
    lambda tokens, x_btd: (_unpad(tokens, x_btd), tokens),
    lambda tokens, g_1nd: (None, _pad(tokens, g_1nd)),
)
_pad.defvjp(
    lambda tokens, x_1nd: (_pad(tokens, x_1nd), tokens),
    lambda tokens, g_btd: (None, _pad_gradient(tokens, g_btd)),
)
