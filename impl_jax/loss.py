"""The training loss: cross-entropy with label smoothing (SMOOTH)."""

import jax
import jax.numpy as jnp

from reference_numpy import checks

from . import mask
from .framework import id_bounds, is_traced, take_last
from .precision import upcast_half

__all__ = ["cross_entropy", "teacher_forcing"]


def teacher_forcing(target_bt: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the decoder's input, all but the last token, and the labels, all but the first.

    Row t is scored on token t + 1.
    """
    checks.check_target(target_bt.shape, str(target_bt.dtype))
    return target_bt[:, :-1], target_bt[:, 1:]


def cross_entropy(
    logits_btv: jax.Array,
    label_bt: jax.Array,
    mask_bt: jax.Array | None = None,
    smoothing: float = 0.0,
    total: jax.Array | int | None = None,
) -> jax.Array:
    """`L = -1/total sum_bt mask sum_v q_v log p_v`, `p = softmax(logits)`,
    `q_v = (1 - smoothing) [v = label] + smoothing / V` (SMOOTH).

    `-log p_label` is computed as `log sum_v e^x_v - x_label`, whose gradient is a softmax that adds
    up to 1; `optax.losses.softmax_cross_entropy` exponentiates a rounded logarithm instead. The
    rows of q are never built. Logits that do not count are replaced first, so that their infinities
    do not reach the gradient. A traced total is not checked; a traced out-of-range label that
    counts makes the loss NaN.
    """
    known = None if total is None or is_traced(total) else int(total)
    kind, bounds = str(label_bt.dtype), id_bounds(label_bt)
    checks.check_labels(logits_btv.shape, label_bt.shape, kind, smoothing, known, *bounds)
    label_bt = jnp.asarray(label_bt)
    mask_bt = jnp.ones(label_bt.shape, bool) if mask_bt is None else jnp.asarray(mask_bt)
    mask.check("mask", mask_bt, label_bt.shape)
    count = jnp.maximum(mask_bt.sum() if total is None else total, 1)
    x_btv = jnp.where(mask_bt[..., None], upcast_half(logits_btv), 0)
    loss_bt = jax.nn.logsumexp(x_btv, axis=-1) - (1 - smoothing) * take_last(x_btv, label_bt)
    if smoothing:
        loss_bt -= smoothing * x_btv.mean(axis=-1)
    return (jnp.sum(loss_bt, where=mask_bt) / count.astype(x_btv.dtype)).astype(logits_btv.dtype)
