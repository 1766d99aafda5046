"""The training loss: cross-entropy with label smoothing (SMOOTH)."""

import tensorflow as tf

from reference_numpy import checks

from . import mask
from .framework import check_total_given, id_bounds
from .precision import upcast_half

__all__ = ["cross_entropy", "teacher_forcing"]


def teacher_forcing(target_bt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the decoder's input, all but the last token, and the labels, all but the first.

    Row t is scored on token t + 1. Raises ValueError unless target is integers `b t`, t at least 2.
    """
    target_bt = tf.convert_to_tensor(target_bt)
    checks.check_target(target_bt.shape, target_bt.dtype.name)
    return target_bt[:, :-1], target_bt[:, 1:]


def cross_entropy(
    logits_btv: tf.Tensor,
    label_bt: tf.Tensor,
    mask_bt: tf.Tensor | None = None,
    smoothing: float = 0.0,
    total: int | tf.Tensor | None = None,
) -> tf.Tensor:
    """`L = -1/total sum_bt mask sum_v q_v log p_v`, `p = softmax(logits)`,
    `q_v = (1 - smoothing) [v = label] + smoothing / V` (SMOOTH).

    TensorFlow's fused cross-entropy computes its gradient `p - [v = label]` in the forward pass.
    The smoothed rows q are never built:
    `-sum_v q_v log p_v = -log p_label + smoothing (x_label - mean_v x_v)`, with logits x. total:
    default, the labels that count, at least 1; a replica of a tf.distribute.Strategy, which sums
    gradients, must pass the count over all replicas.
    """
    check_total_given(total)
    label_bt = tf.convert_to_tensor(label_bt)
    known = None if total is None or tf.is_tensor(total) else int(total)
    shapes, bounds = (logits_btv.shape, label_bt.shape), id_bounds(label_bt)
    checks.check_labels(*shapes, label_bt.dtype.name, smoothing, known, *bounds)
    if label_bt.dtype not in (tf.int32, tf.int64):
        label_bt = tf.cast(label_bt, tf.int64)
    wide_btv = upcast_half(logits_btv)
    if mask_bt is None:
        mask_bt = tf.ones(tf.shape(label_bt), tf.bool)
    mask.check("mask", mask_bt, label_bt.shape)
    # Replace the logits of uncounted labels first: an infinite one would give NaN, and NaN times a
    # zero cotangent is NaN.
    wide_btv = tf.where(mask_bt[..., tf.newaxis], wide_btv, tf.zeros((), wide_btv.dtype))
    loss_bt = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label_bt, logits=wide_btv)
    if smoothing:
        logit_bt = tf.gather(wide_btv, label_bt, batch_dims=2)
        loss_bt += smoothing * (logit_bt - tf.reduce_mean(wide_btv, axis=-1))
    if total is None:
        total = tf.maximum(tf.math.count_nonzero(mask_bt), 1)
    counted_bt = tf.where(mask_bt, loss_bt, tf.zeros((), loss_bt.dtype))
    return tf.cast(tf.reduce_sum(counted_bt / tf.cast(total, loss_bt.dtype)), logits_btv.dtype)
