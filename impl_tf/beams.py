"""The beams of all rows: which are live, which are finished, and when to stop (BEAM)."""

from typing import NamedTuple

import tensorflow as tf

__all__ = ["Beams", "best", "choose", "keep", "start", "stops"]


class Beams(NamedTuple):
    """Hypotheses of every row, best first: tokens, and log p or score; -inf marks an empty slot."""

    score_bw: tf.Tensor
    token_bwn: tf.Tensor


def start(
    batch: int, size: int, length: int, pad_id: tf.Tensor, dtype: tf.DType
) -> tuple[Beams, Beams]:
    """Returns one empty live beam for each row, and no finished hypotheses."""
    token_bwn = tf.fill([batch, size, length], pad_id)
    nothing_bw = tf.fill([batch, size], tf.constant(float("-inf"), dtype))
    score_bw = tf.concat([tf.zeros([batch, 1], dtype), nothing_bw[:, 1:]], axis=1)
    return Beams(score_bw, token_bwn), Beams(nothing_bw, token_bwn)


def best(live: Beams, sum_bwv: tf.Tensor, place: tf.Tensor) -> tuple[Beams, tf.Tensor, tf.Tensor]:
    """Returns the continuations of largest log p, largest first; ties go to the lower token, then
    to the better beam. Also returns each beam's last token and its parent.
    """
    # The best of a row are among the best of each of its beams.
    size = live.score_bw.shape[1]
    score_bwc, token_bwc = tf.math.top_k(sum_bwv, size)  # ties go to the lower index
    beam_bwc = tf.broadcast_to(tf.range(size)[:, tf.newaxis], tf.shape(token_bwc))
    score_bc, token_bc, beam_bc = (
        tf.reshape(x, [-1, size * size]) for x in (score_bwc, token_bwc, beam_bwc)
    )
    order_bc = tf.argsort(token_bc * size + beam_bc, axis=1, stable=True)
    score_bw, chosen_bw = tf.math.top_k(tf.gather(score_bc, order_bc, batch_dims=1), size)
    chosen_bw = tf.gather(order_bc, chosen_bw, batch_dims=1)
    token_bw, parent_bw = (tf.gather(x, chosen_bw, batch_dims=1) for x in (token_bc, beam_bc))
    token_bwn = _with(tf.gather(live.token_bwn, parent_bw, batch_dims=1), token_bw, place)
    return Beams(score_bw, token_bwn), token_bw, parent_bw


def keep(
    kept: Beams, live: Beams, ended_bw: tf.Tensor, end_id: tf.Tensor, place: tf.Tensor
) -> Beams:
    """Returns the best of the finished hypotheses and of the live beams that end now, highest score
    first; ties go to the lower tokens.
    """
    size = ended_bw.shape[1]
    nothing = tf.constant(float("-inf"), ended_bw.dtype)
    ended_bw = tf.where(tf.math.is_finite(ended_bw), ended_bw, nothing)
    ended_bwn = _with(live.token_bwn, tf.fill(tf.shape(ended_bw), end_id), place)
    score_bc = tf.concat([kept.score_bw, ended_bw], axis=1)
    token_bcn = tf.concat([kept.token_bwn, ended_bwn], axis=1)
    rank_bc = tf.math.count_nonzero(_before(score_bc, token_bcn), axis=1)
    order_bw = tf.argsort(rank_bc, axis=1)[:, :size]
    score_bw, token_bwn = (tf.gather(x, order_bw, batch_dims=1) for x in (score_bc, token_bcn))
    return Beams(score_bw, token_bwn)


def _before(score_bc: tf.Tensor, token_bcn: tf.Tensor) -> tf.Tensor:
    """Returns whether the first of each pair ranks before the second: by score, then by lower
    tokens, then by index.
    """
    one_bc1n, other_b1cn = token_bcn[:, :, tf.newaxis], token_bcn[:, tf.newaxis]
    length = token_bcn.shape[2]
    lower_bcc, higher_bcc = (  # the first positions at which one is lower, and higher
        tf.reduce_min(tf.where(there_bccn, tf.range(length), length), axis=-1)
        for there_bccn in (one_bc1n < other_b1cn, one_bc1n > other_b1cn)
    )
    index_c = tf.range(token_bcn.shape[1])
    earlier_cc = index_c[:, tf.newaxis] < index_c
    first_bcc = (lower_bcc < higher_bcc) | ((lower_bcc == higher_bcc) & earlier_cc)
    one_bc1, other_b1c = score_bc[:, :, tf.newaxis], score_bc[:, tf.newaxis]
    return (one_bc1 > other_b1c) | ((one_bc1 == other_b1c) & first_bcc)


def choose(old_b: tf.Tensor, old: Beams, new: Beams) -> Beams:
    """Keeps the old beams in the rows old_b and takes the new ones in the others."""
    score_bw = tf.where(old_b[:, tf.newaxis], old.score_bw, new.score_bw)
    return Beams(score_bw, tf.where(old_b[:, tf.newaxis, tf.newaxis], old.token_bwn, new.token_bwn))


def stops(live: Beams, kept: Beams, longest: tf.Tensor, early_stop: tf.Tensor) -> tf.Tensor:
    """Returns whether no live beam of a row can still beat its worst finished hypothesis.

    longest: the length penalty of the longest answer.
    """
    full_b = kept.score_bw[:, -1] > float("-inf")
    return full_b & (early_stop | (live.score_bw[:, 0] / longest <= kept.score_bw[:, -1]))


def _with(token_bwn: tf.Tensor, token_bw: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.range(token_bwn.shape[2]) == place, token_bw[..., tf.newaxis], token_bwn)
