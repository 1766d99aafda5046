"""From the logits of the next token to the token (SAMPLE)."""

from functools import partial
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import checks

from . import mask, softmax
from .framework import id_bounds, keras, sizes
from .precision import upcast_half

__all__ = ["draw", "penalise", "truncate"]

Number: TypeAlias = "float | tf.Tensor"
MANY = 256


def penalise(
    scores_bv: tf.Tensor,
    token_bn: tf.Tensor,
    repetition_penalty: Number = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: tf.Tensor | None = None,
) -> tf.Tensor:
    """Lowers the scores of tokens that the target already contains.

    A score x of such a token becomes `x / penalty` if it is positive, otherwise `x penalty`; a
    token that would repeat a run of no_repeat_ngram tokens gets -inf. repetition_penalty may be a
    scalar tensor. Raises ValueError on invalid arguments, as far as values are known.
    """
    _check_penalise(scores_bv, token_bn, repetition_penalty, no_repeat_ngram, mask_bn)
    if mask_bn is None:
        mask_bn = tf.ones(tf.shape(token_bn), tf.bool)
    token_bn, vocabulary = tf.cast(token_bn, tf.int32), tf.shape(scores_bv)[1]
    penalty = keras.ops.convert_to_tensor(repetition_penalty, scores_bv.dtype)
    less_bv = tf.where(scores_bv > 0, scores_bv / penalty, scores_bv * penalty)
    result_bv = tf.where(_named(token_bn, mask_bn, vocabulary), less_bv, scores_bv)
    if not 0 < no_repeat_ngram <= token_bn.shape[1]:
        return result_bv
    repeats_bn = _repeats(token_bn, mask_bn, no_repeat_ngram)
    endings_bv = _named(token_bn[:, no_repeat_ngram - 1 :], repeats_bn, vocabulary)
    return tf.where(endings_bv, tf.constant(float("-inf"), result_bv.dtype), result_bv)


def _repeats(token_bn: tf.Tensor, mask_bn: tf.Tensor, size: int) -> tf.Tensor:
    """Marks runs of `size` tokens, by their start, that begin with the last size - 1 tokens of the
    target. No run contains padding.
    """
    count = token_bn.shape[1] - size + 1
    same_bn = mask_bn[:, size - 1 :]
    for place in range(size - 1):
        run, last = slice(place, place + count), slice(count + place, count + place + 1)
        same_bn &= mask_bn[:, run] & mask_bn[:, last] & (token_bn[:, run] == token_bn[:, last])
    return same_bn


def _named(token_bn: tf.Tensor, mask_bn: tf.Tensor, vocabulary: int | tf.Tensor) -> tf.Tensor:
    """Marks the ids that occur in each row: `b v`."""
    batch, length = sizes(token_bn)
    row_bn = tf.broadcast_to(tf.range(batch)[:, tf.newaxis], [batch, length])
    place_bn2, count_bn = tf.stack([row_bn, token_bn], axis=-1), tf.cast(mask_bn, tf.int32)
    return tf.scatter_nd(place_bn2, count_bn, [batch, vocabulary]) > 0


def truncate(
    logits_bv: tf.Tensor,
    temperature: Number = 1.0,
    top_k: int | tf.Tensor = 0,
    top_p: Number = 1.0,
    most: int | None = None,
) -> tf.Tensor:
    """`x = logits / temperature`; -inf outside the top_k largest, then outside top_p.

    Ties go to the lower token id, and the token that crosses top_p is kept (SAMPLE). The numbers
    may be scalar tensors, whose values are not checked. Python's 0 and 1 skip the sort. most:
    static upper bound of top_k, required if top_k is a tensor.
    """
    _check_truncate(logits_bv, temperature, top_k, top_p)
    x_bv = logits_bv / keras.ops.convert_to_tensor(temperature, logits_bv.dtype)
    vocabulary = logits_bv.shape[1]
    if not _plain(top_k, 0):
        count = (most or vocabulary) if tf.is_tensor(top_k) else top_k
        return _likeliest(x_bv, min(count, vocabulary), top_k, top_p)
    if _plain(top_p, 1):
        return x_bv
    if vocabulary <= MANY:
        return _likeliest(x_bv, vocabulary, None, top_p)
    # Finding the MANY largest takes far less time than sorting all, and nearly always suffices.
    largest_bn, _ = tf.math.top_k(x_bv, MANY)
    probability_b = tf.reduce_sum(_probability(largest_bn, x_bv), axis=1)
    enough = tf.reduce_all(probability_b >= keras.ops.convert_to_tensor(top_p, probability_b.dtype))
    few, everything = (
        partial(_likeliest, x_bv, count, None, top_p) for count in (MANY, vocabulary)
    )
    return tf.cond(enough, few, everything)


def _likeliest(
    x_bv: tf.Tensor, count: int, top_k: int | tf.Tensor | None, top_p: Number
) -> tf.Tensor:
    """Sets logits outside the top_k largest, or outside top_p, to -inf."""
    ordered_bn, order_bn = tf.math.top_k(x_bv, count)  # ties go to the lower index
    if top_k is not None:
        ordered_bn = tf.where(tf.range(count) < top_k, ordered_bn, float("-inf"))
    if not _plain(top_p, 1):
        p_bn = _probability(ordered_bn, x_bv if top_k is None else ordered_bn)
        likelier_bn = tf.cumsum(p_bn, axis=1, exclusive=True)
        kept_bn = likelier_bn < keras.ops.convert_to_tensor(top_p, p_bn.dtype)
        kept_bn |= tf.range(count) == 0
        ordered_bn = tf.where(kept_bn, ordered_bn, float("-inf"))
    row_bn = tf.broadcast_to(tf.range(tf.shape(x_bv)[0])[:, tf.newaxis], tf.shape(order_bn))
    nothing_bv = tf.fill(tf.shape(x_bv), tf.constant(float("-inf"), x_bv.dtype))
    place_bn2 = tf.stack([row_bn, order_bn], axis=-1)
    return tf.tensor_scatter_nd_update(nothing_bv, place_bn2, ordered_bn)


def _probability(ordered_bn: tf.Tensor, all_bv: tf.Tensor) -> tf.Tensor:
    """Returns the probability, among all logits, of the ordered ones; the largest comes first."""
    largest_b1 = upcast_half(ordered_bn[:, :1])
    all_bv = tf.exp(upcast_half(all_bv) - largest_b1)
    sum_b1 = tf.reduce_sum(all_bv, axis=1, keepdims=True)
    return tf.exp(upcast_half(ordered_bn) - largest_b1) / sum_b1


def draw(logits_bv: tf.Tensor, uniform_b: tf.Tensor) -> tf.Tensor:
    """Returns the lowest id whose `p_0 + ... + p_id` exceeds its number, `p = softmax(logits)`."""
    _check_draw(logits_bv, uniform_b)
    p_bv, ids = softmax.softmax(logits_bv), tf.range(logits_bv.shape[1], dtype=tf.int64)
    cumulative_bv = tf.cast(tf.cumsum(p_bv, axis=1), tf.float64)
    # the answer if the total is rounded below the number
    last_b = tf.reduce_max(tf.where(p_bv > 0, ids, 0), axis=1)
    below_bv = cumulative_bv <= tf.cast(uniform_b, tf.float64)[:, tf.newaxis]
    return tf.minimum(tf.math.count_nonzero(below_bv, axis=1), last_b)


def _plain(value: Number, wanted: int) -> bool:
    return not tf.is_tensor(value) and value == wanted


def _value(number: Number) -> float:
    """Returns the number, or 1 if a graph does not know it."""
    return 1.0 if tf.is_symbolic_tensor(number) else float(number)


def _check_penalise(
    scores_bv: tf.Tensor,
    token_bn: tf.Tensor,
    repetition_penalty: Number = 1.0,
    no_repeat_ngram: int = 0,
    mask_bn: tf.Tensor | None = None,
) -> None:
    """Raises ValueError on invalid arguments of `penalise`; symbolic values are not checked."""
    checks.check_next_token(scores_bv.shape, token_bn.shape, token_bn.dtype.name)
    mask.check("mask", mask_bn, token_bn.shape)
    checks.check_penalties(_value(repetition_penalty), no_repeat_ngram)
    if bounds := id_bounds(token_bn):
        checks.check_held(scores_bv.shape[1], *bounds)


def _check_truncate(
    logits_bv: tf.Tensor,
    temperature: Number = 1.0,
    top_k: int | tf.Tensor = 0,
    top_p: Number = 1.0,
    most: int | None = None,
) -> None:
    """Raises ValueError on invalid arguments of `truncate`, and on logits that `draw` rejects."""
    count = 0 if tf.is_tensor(top_k) else top_k
    checks.check_sampling(logits_bv.shape, _value(temperature), count, _value(top_p))
    if not tf.is_symbolic_tensor(logits_bv):
        checks.check_choice(np.asarray(logits_bv, np.float64).max(axis=1).tolist())


def _check_draw(logits_bv: tf.Tensor, uniform_b: tf.Tensor) -> None:
    """Raises ValueError on invalid arguments of `draw`."""
    _check_truncate(logits_bv)
    known_b = np.zeros(0) if tf.is_symbolic_tensor(uniform_b) else np.asarray(uniform_b)
    lowest, highest = float(known_b.min(initial=0)), float(known_b.max(initial=0))
    checks.check_uniform(uniform_b.shape, logits_bv.shape[:1], lowest, highest, rounded=True)


# `compiled` calls these before the program.
penalise.check_ids = _check_penalise  # type: ignore[attr-defined]
truncate.check_ids = _check_truncate  # type: ignore[attr-defined]
draw.check_ids = _check_draw  # type: ignore[attr-defined]
