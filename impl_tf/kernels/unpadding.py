"""Unpadding: flat tokens of all rows without padding; only attention sees rows (PADDING)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from ..framework import sizes
from ..values import Heads

__all__ = ["PaddedMask", "Tokens", "counted", "in_rows", "pad", "unpad"]

Gradient: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class Tokens(NamedTuple):
    """Maps rows `b t` to n flat tokens, `1 n`.

    index_n: the position of each flat token among all `b * t`, 0 for the filler at the end; None if
    all positions are flat, in order. place_bt: the place of each position, 0 if it has none.
    mask_bt: True = has a flat token.
    """

    index_n: tf.Tensor | None
    place_bt: tf.Tensor
    mask_bt: tf.Tensor


class PaddedMask(NamedTuple):
    """Replaces `mask_bhts` in an unpadded run: a mask of rows, and the flat queries and keys."""

    mask_bhts: tf.Tensor | None
    query: Tokens
    key: Tokens


def in_rows(attention: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Decorates `attention(heads, mask, ...)`, which needs rows, to accept flat heads: if the mask
    is a `PaddedMask`, heads and output are flat.
    """

    @functools.wraps(attention)
    def call(module: Any, heads: Heads, mask: Any = None, *others: Any) -> tf.Tensor:
        if not isinstance(mask, PaddedMask):
            return attention(module, heads, mask, *others)
        mask_bhts, query, key = mask
        query_bthk, key_bsgk, value_bsge, sink_h = heads
        rows = Heads(pad(query_bthk, query), pad(key_bsgk, key), pad(value_bsge, key), sink_h)
        return unpad(attention(module, rows, mask_bhts, *others), query)

    return call


def unpad(x_btd: tf.Tensor, tokens: Tokens) -> tf.Tensor:
    """Flattens rows `b t d`, with any axes for d, to tokens `1 n d`.

    Its gradient is `pad`, a gather: every token occurs once, and nothing reads the filler.
    """
    if tokens.index_n is None:
        return tf.reshape(x_btd, [1, -1, *sizes(x_btd)[2:]])

    @tf.custom_gradient
    def unpadded(x_btd: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
        x_pd = tf.reshape(x_btd, [-1, *sizes(x_btd)[2:]])
        return tf.gather(x_pd, tokens.index_n)[tf.newaxis], lambda g_1nd: pad(g_1nd, tokens)

    return unpadded(x_btd)


def pad(x_1nd: tf.Tensor, tokens: Tokens) -> tf.Tensor:
    """Restores rows `b t d` from flat tokens; zeros at positions without one.

    Its gradient is `unpad`, with zeros for the filler.
    """
    if tokens.index_n is None:
        shape = *sizes(tokens.mask_bt), *sizes(x_1nd)[2:]
        return tf.reshape(x_1nd, shape)

    @tf.custom_gradient
    def padded(x_1nd: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
        # An extra row of zeros is faster than replacing the positions without a token.
        x_md = tf.concat([x_1nd[0], tf.zeros_like(x_1nd[0, :1])], axis=0)
        x_btd = tf.gather(x_md, tf.where(tokens.mask_bt, tokens.place_bt, tf.shape(x_1nd)[1]))
        return x_btd, lambda g_btd: _pad_gradient(g_btd, tokens)

    return padded(x_1nd)


def counted(mask_bt: tf.Tensor, tokens: Tokens) -> tf.Tensor:
    """Flattens a mask to `1 n`; False for the filler."""
    mask_1n = unpad(mask_bt, tokens)
    return mask_1n if tokens.index_n is None else mask_1n & _is_token(tokens)


def _pad_gradient(g_btd: tf.Tensor, tokens: Tokens) -> tf.Tensor:
    is_token_1n1 = tf.reshape(_is_token(tokens), [1, -1, *[1] * (len(g_btd.shape) - 2)])
    return tf.where(is_token_1n1, unpad(g_btd, tokens), tf.zeros((), g_btd.dtype))


def _is_token(tokens: Tokens) -> tf.Tensor:
    """Mask of the flattened positions, `1 n`: True for tokens, False for the filler."""
    place_1n, mask_1n = (unpad(x_bt, tokens) for x_bt in (tokens.place_bt, tokens.mask_bt))
    return mask_1n & (place_1n == tf.range(tf.shape(place_1n)[1]))
