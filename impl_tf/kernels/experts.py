"""Experts for many tokens: rows sorted by expert, in blocks that a batched product multiplies.

All shapes are static, so that XLA compiles it. A block has one expert, whose kernels are copied for
it; the last block of an expert is partly filled.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from reference_numpy import TransformerConfig

from ..framework import sizes
from ..precision import upcast_half

__all__ = ["in_blocks"]

# On a CPU, as long as copying an expert's kernels takes as multiplying this many rows by them.
COPY = 90

Gradient = Callable[[tf.Tensor], tf.Tensor]


class Blocks(NamedTuple):
    """Rows r of blocks g, and tokens n with k experts each.

    expert_g: the expert of a block. token_gr: the token of a row. used_gr1: False = filler.
    place_nk: the row, among all `g * r`, of each expert of a token.
    """

    expert_g: tf.Tensor
    token_gr: tf.Tensor
    used_gr1: tf.Tensor
    place_nk: tf.Tensor


def in_blocks(
    every: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    weighted: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    x_btd: tf.Tensor,
    weight_btx: tf.Tensor,
    config: TransformerConfig,
) -> tf.Tensor:
    """`sum_e w_e FFN_e(x)`, `b t d`, from `weighted(x, w, expert)` of blocks `g r`.

    every: computes all experts for all of a few tokens, which is faster than copying kernels.
    """
    count, experts = config.experts_per_token, config.experts
    x_nd = tf.reshape(x_btd, [-1, config.model_width])
    weight_nx = tf.reshape(weight_btx, [-1, experts])
    rows = block_rows(x_nd.shape[0], count, experts)
    if rows is None:
        return tf.reshape(every(x_nd, weight_nx), sizes(x_btd))
    expert_nk = tf.math.top_k(upcast_half(weight_nx), count).indices
    blocks = sorted_blocks(expert_nk, experts, rows)
    own_g1x = tf.one_hot(blocks.expert_g, experts, dtype=weight_nx.dtype)[:, tf.newaxis]
    weight_gr1 = tf.reduce_sum(to_rows(weight_nx, blocks) * own_g1x, axis=-1, keepdims=True)
    y_grd = weighted(to_rows(x_nd, blocks), weight_gr1, blocks.expert_g)
    return tf.reshape(to_tokens(y_grd, blocks), sizes(x_btd))


def block_rows(tokens: int | None, count: int, experts: int) -> int | None:
    """Returns the rows of a block, so that copies and fillers cost least; None if every expert
    would have one block. tokens: None if a graph does not know their number.
    """
    if tokens is None:
        return COPY
    pairs = max(1, tokens * count)
    rows = math.ceil(math.sqrt(COPY * pairs / min(pairs, experts)))
    if rows < tokens:
        return rows
    return None if pairs >= experts else max(1, tokens)


def sorted_blocks(expert_nk: tf.Tensor, experts: int, rows: int) -> Blocks:
    """Sorts tokens by expert into blocks of this many rows."""
    tokens, count = sizes(expert_nk)
    pairs, expert_p = tokens * count, tf.reshape(expert_nk, [-1])
    order_p = tf.argsort(expert_p, stable=True)
    tokens_x = tf.reduce_sum(tf.one_hot(expert_p, experts, dtype=tf.int32), axis=0)
    first_x, blocks_x = tf.cumsum(tokens_x, exclusive=True), -(-tokens_x // rows)
    end_x = tf.cumsum(blocks_x)
    # As many blocks as could be needed, whatever the tokens choose.
    block_g = tf.range((pairs + tf.minimum(pairs, experts) * (rows - 1)) // rows)
    before_gx = end_x <= block_g[:, tf.newaxis]
    expert_g = tf.minimum(tf.reduce_sum(tf.cast(before_gx, tf.int32), axis=1), experts - 1)
    own_g = block_g - tf.gather(end_x - blocks_x, expert_g)  # index among the expert's blocks
    place_gr = own_g[:, tf.newaxis] * rows + tf.range(rows)
    used_gr = place_gr < tf.gather(tokens_x, expert_g)[:, tf.newaxis]
    sorted_gr = tf.where(used_gr, tf.gather(first_x, expert_g)[:, tf.newaxis] + place_gr, 0)
    token_gr = tf.gather(order_p, sorted_gr) // count
    place_p = tf.gather((end_x - blocks_x) * rows - first_x, expert_p) + tf.argsort(order_p)
    place_nk = tf.reshape(place_p, [tokens, count])
    return Blocks(expert_g, token_gr, used_gr[..., tf.newaxis], place_nk)


def to_rows(x_nd: tf.Tensor, blocks: Blocks) -> tf.Tensor:
    """Copies tokens to the rows of their experts: `g r d`, zeros in fillers. Its gradient is
    `to_tokens`.
    """

    @tf.custom_gradient
    def copied(x_nd: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
        x_grd = tf.gather(x_nd, blocks.token_gr)
        x_grd = tf.where(blocks.used_gr1, x_grd, tf.zeros((), x_nd.dtype))
        return x_grd, lambda g_grd: to_tokens(g_grd, blocks)

    return copied(x_nd)


def to_tokens(y_grd: tf.Tensor, blocks: Blocks) -> tf.Tensor:
    """Adds the rows of each token: `n d`. Its gradient is `to_rows`."""

    @tf.custom_gradient
    def added(y_grd: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
        y_rd = tf.reshape(y_grd, [-1, y_grd.shape[-1]])
        y_nkd = upcast_half(tf.gather(y_rd, blocks.place_nk))
        y_nd = tf.cast(tf.reduce_sum(y_nkd, axis=1), y_grd.dtype)
        return y_nd, lambda g_nd: to_rows(g_nd, blocks)

    return added(y_grd)
