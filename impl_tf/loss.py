"""The training loss: cross-entropy with label smoothing (SMOOTH), and that of routers (BALANCE)."""

import tensorflow as tf

from reference_numpy import checks

from . import mask
from .experts import largest
from .framework import check_total_given, id_bounds, sizes
from .precision import upcast_half
from .softmax import softmax

__all__ = ["cross_entropy", "router_loss", "teacher_forcing"]


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


def router_loss(
    logits_lbtx: tf.Tensor,
    per_token: int,
    mask_bt: tf.Tensor | None = None,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
) -> tf.Tensor:
    """`L = aux X sum_x f_x p_x + z mean_lbt (log sum_x e^logits)^2`, over the tokens that count.

    f_x: how many experts x an average token of all layers chooses, if it chooses the per_token
    largest logits; it has no gradient. p_x: the mean of `softmax(logits)`.
    """
    weights, shape = (router_aux_weight, router_z_weight), sizes(logits_lbtx)
    checks.check_router_loss(logits_lbtx.shape, per_token, *weights)
    mask_bt = tf.ones(shape[1:3], tf.bool) if mask_bt is None else mask_bt
    mask.check("mask", mask_bt, logits_lbtx.shape[1:3])
    wide_lbtx, dtype = upcast_half(logits_lbtx), upcast_half(logits_lbtx).dtype
    x_lbtx = tf.where(mask_bt[..., tf.newaxis], wide_lbtx, tf.zeros((), dtype))
    real_bt1 = tf.cast(mask_bt[..., tf.newaxis], dtype)
    count = tf.maximum(tf.reduce_sum(real_bt1), 1) * tf.cast(shape[0], dtype)
    chosen_lbtx, tokens = tf.cast(largest(x_lbtx, per_token), dtype), (0, 1, 2)
    f_x = tf.reduce_sum(chosen_lbtx * real_bt1, tokens) / count
    p_x = tf.reduce_sum(softmax(x_lbtx) * real_bt1, tokens) / count
    log_z_lbt1 = tf.reduce_logsumexp(x_lbtx, axis=-1, keepdims=True)
    z = tf.reduce_sum(tf.square(log_z_lbt1) * real_bt1) / count
    aux = tf.cast(shape[3], dtype) * tf.reduce_sum(f_x * p_x)
    return tf.cast(router_aux_weight * aux + router_z_weight * z, logits_lbtx.dtype)


def share(mask_bt: tf.Tensor, total: int | tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
    """Returns the share of these labels in all that count."""
    count = tf.math.count_nonzero(mask_bt)
    total = tf.maximum(count, 1) if total is None else total
    return tf.cast(count, dtype) / tf.cast(total, dtype)
