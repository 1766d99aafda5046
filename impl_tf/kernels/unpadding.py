"""Unpadding: the real tokens of all rows lie side by side; only attention computes padding."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from ..framework import sizes
from ..values import Heads

__all__ = ["PaddedMask", "Tokens", "counted", "in_rows", "pad", "unpad"]

Gradient: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class Tokens(NamedTuple):
    """Which positions of rows `b t` lie flat, `1 n`, and where.

    index_n: the position of every flat token among all `b * t`, and 0 for the filler at the end;
    None: all positions lie flat, in their order. place_bt: where every position lies, 0 if it does
    not. mask_bt: True = it lies flat.
    """

    index_n: tf.Tensor | None
    place_bt: tf.Tensor
    mask_bt: tf.Tensor


class PaddedMask(NamedTuple):
    """Stands where `mask_bhts` stands: that mask, of rows, and where queries and keys lie flat."""

    mask_bhts: tf.Tensor | None
    query: Tokens
    key: Tokens


def in_rows(attention: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """A method `attention(heads, mask, ...)` that always sees rows. If the mask is a `PaddedMask`,
    heads and output lie flat."""

    @functools.wraps(attention)
    def call(module: Any, heads: Heads, mask: Any = None, *others: Any) -> tf.Tensor:
        if not isinstance(mask, PaddedMask):
            return attention(module, heads, mask, *others)
        mask_bhts, query, key = mask
        query_bthk, key_bsgk, value_bsge = heads
        rows = Heads(pad(query_bthk, query), pad(key_bsgk, key), pad(value_bsge, key))
        return unpad(attention(module, rows, mask_bhts, *others), query)

    return call


def unpad(x_btd: tf.Tensor, tokens: Tokens) -> tf.Tensor:
    """The flat tokens, `1 n d`, of rows `b t d`, with any axes for d.

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
    """Rows `b t d` of flat tokens; zeros at positions that do not lie flat.

    Its gradient is `unpad`, with zeros for the filler.
    """
    if tokens.index_n is None:
        shape = *sizes(tokens.mask_bt), *sizes(x_1nd)[2:]
        return tf.reshape(x_1nd, shape)

    @tf.custom_gradient
    def padded(x_1nd: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
        # A row of zeros at the end is faster than to replace the positions that do not lie flat.
        x_md = tf.concat([x_1nd[0], tf.zeros_like(x_1nd[0, :1])], axis=0)
        x_btd = tf.gather(x_md, tf.where(tokens.mask_bt, tokens.place_bt, tf.shape(x_1nd)[1]))
        return x_btd, lambda g_btd: _pad_gradient(g_btd, tokens)

    return padded(x_1nd)


def counted(mask_bt: tf.Tensor, tokens: Tokens) -> tf.Tensor:
    """The mask of the flat tokens, `1 n`; False for the filler."""
    mask_1n = unpad(mask_bt, tokens)
    return mask_1n if tokens.index_n is None else mask_1n & _is_token(tokens)


def _pad_gradient(g_btd: tf.Tensor, tokens: Tokens) -> tf.Tensor:
    is_token_1n1 = tf.reshape(_is_token(tokens), [1, -1, *[1] * (len(g_btd.shape) - 2)])
    return tf.where(is_token_1n1, unpad(g_btd, tokens), tf.zeros((), g_btd.dtype))


def _is_token(tokens: Tokens) -> tf.Tensor:
    """Whether what lies flat is a token, not the filler: `1 n`."""
    place_1n, mask_1n = (unpad(x_bt, tokens) for x_bt in (tokens.place_bt, tokens.mask_bt))
    return mask_1n & (place_1n == tf.range(tf.shape(place_1n)[1]))
