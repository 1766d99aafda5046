"""Masks: boolean, True = may attend, broadcastable to b h t s (MASK)."""

from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from reference_numpy import checks

__all__ = ["causal_mask", "combine_masks", "padding_mask", "real_rows", "token_mask", "window_mask"]

M = TypeVar("M", bound="tf.Tensor | None")


def token_mask(token: tf.Tensor, padding_id: int | None) -> tf.Tensor:
    """`mask = token != padding_id`, `b t`; all True without a padding id or for one-hot rows."""
    if padding_id is None or len(token.shape) == 3:
        return tf.ones(tf.shape(token)[:2], dtype=tf.bool)
    return token != padding_id


def check(name: str, mask_bt: tf.Tensor | None, tokens: Sequence[int] | None = None) -> None:
    """Raises ValueError if a token mask, boolean `b t`, does not match the tokens."""
    if mask_bt is not None:
        checks.check_token_mask(name, mask_bt.shape, mask_bt.dtype.name, tokens)


def padding_mask(mask_bs: M) -> M:
    """Turns a mask of real tokens, `b s`, into `b 1 1 s`: no query may attend to padding.

    LiteRT cannot add an axis by slicing if sizes are unknown.
    """
    check("mask", mask_bs)
    return mask_bs if mask_bs is None else tf.expand_dims(tf.expand_dims(mask_bs, 1), 1)


def causal_mask(target_length: int | tf.Tensor, source_length: int | tf.Tensor) -> tf.Tensor:
    """Query i may attend to key j if `j <= i + (s - t)` (CAUSAL): `1 1 t s`.

    Lengths may be scalar tensors.
    """
    query_t1 = (tf.range(target_length) + source_length - target_length)[:, tf.newaxis]
    return (tf.range(source_length) <= query_t1)[tf.newaxis, tf.newaxis]


def window_mask(
    target_length: int | tf.Tensor, source_length: int | tf.Tensor, window: int
) -> tf.Tensor:
    """Query i may attend to key j if `|i + (s - t) - j| < window` (WINDOW): `1 1 t s`.

    Lengths may be scalar tensors. Raises ValueError if window is less than 1.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1; got {window}")
    query_t1 = (tf.range(target_length) + source_length - target_length)[:, tf.newaxis]
    return (tf.abs(query_t1 - tf.range(source_length)) < window)[tf.newaxis, tf.newaxis]


def combine_masks(mask_bhts: tf.Tensor | None, other_bhts: tf.Tensor | None) -> tf.Tensor | None:
    """`mask & other`; None allows everything. A floating mask becomes -inf where other is False."""
    if mask_bhts is None or other_bhts is None:
        return other_bhts if mask_bhts is None else mask_bhts
    if mask_bhts.dtype.name == "bool":
        return mask_bhts & other_bhts
    return tf.where(other_bhts, mask_bhts, tf.constant(float("-inf"), mask_bhts.dtype))


def real_rows(logits_btv: tf.Tensor, mask_bt: tf.Tensor) -> tf.Tensor:
    """Zeroes the logits at padding (PADDING). mask_bt: True = real token."""
    return tf.where(mask_bt[..., tf.newaxis], logits_btv, tf.zeros((), logits_btv.dtype))
