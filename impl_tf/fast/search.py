"""How a search chooses the next token, within its graph."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from .. import sampling
from .request import Plan

__all__ = ["choose", "log_p", "penalised"]


def log_p(logits_bv: tf.Tensor, token_b: tf.Tensor | None = None) -> tf.Tensor:
    """log p of every token, or of one of each row."""
    x_bv = logits_bv - tf.reduce_max(logits_bv, axis=1, keepdims=True)
    total_b1 = tf.math.log(tf.reduce_sum(tf.exp(x_bv), axis=1, keepdims=True))
    return x_bv - total_b1 if token_b is None else tf.gather(x_bv, token_b, batch_dims=1) - total_b1[:, 0]


def penalised(chosen: Plan, given: Mapping[str, tf.Tensor], state: Mapping[str, Any], scores_bv: tf.Tensor) -> tf.Tensor:
    """The scores by which the next token is chosen."""
    if "seen_bn" in state:
        seen = (state["seen_bn"], given["repetition_penalty"], chosen.no_repeat_ngram, state["seen_mask_bn"])
        scores_bv = sampling.penalise(scores_bv, *seen)
    too_early_v = (tf.range(scores_bv.shape[1]) == given["end_id"]) & (state["step"] < given["min_new_tokens"])
    return tf.where(too_early_v, tf.constant(float("-inf"), scores_bv.dtype), scores_bv)


def choose(chosen: Plan, given: Mapping[str, tf.Tensor], step: tf.Tensor, scores_bv: tf.Tensor) -> tf.Tensor:
    """The next token of each row; where nothing may follow it is the end."""
    stuck_b = tf.reduce_max(scores_bv, axis=1) == float("-inf")
    if chosen.drawn:
        scores_bv = tf.where(stuck_b[:, tf.newaxis], tf.zeros((), scores_bv.dtype), scores_bv)
        top_k, top_p = given["top_k"] if chosen.most else 0, given["top_p"] if chosen.by_probability else 1
        token_b = sampling.draw(sampling.truncate(scores_bv, given["temperature"], top_k, top_p, chosen.most), given["uniform_bn"][:, step])
    else:
        token_b = _likeliest(scores_bv)
    return tf.where(stuck_b, given["end_id"], tf.cast(token_b, tf.int32))


def _likeliest(scores_bv: tf.Tensor) -> tf.Tensor:
    """Of equals the lower id, of which `tf.argmax` says nothing; and these two reductions take half its time."""
    ids, largest_b1 = tf.range(scores_bv.shape[1]), tf.reduce_max(scores_bv, axis=1, keepdims=True)
    return tf.reduce_min(tf.where(scores_bv == largest_b1, ids, scores_bv.shape[1] - 1), axis=1)
