"""The training loss: cross-entropy with label smoothing (SMOOTH), and that of routers (BALANCE)."""

import jax
import jax.numpy as jnp
from flax.typing import Dtype

from reference_numpy import checks

from . import mask
from .experts import largest
from .framework import id_bounds, is_traced, take_last
from .precision import upcast_half
from .softmax import softmax

__all__ = ["cross_entropy", "router_loss", "teacher_forcing"]


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


def router_loss(
    logits_lbtx: jax.Array,
    per_token: int,
    mask_bt: jax.Array | None = None,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
) -> jax.Array:
    """`L = aux X sum_x f_x p_x + z mean_lbt (log sum_x e^logits)^2`, over the tokens that count.

    f_x: how many experts x an average token of all layers chooses, if it chooses the per_token
    largest logits; constant for the gradient. p_x: the mean of `softmax(logits)`.
    """
    shape = logits_lbtx.shape
    checks.check_router_loss(shape, per_token, router_aux_weight, router_z_weight)
    mask_bt = jnp.ones(shape[1:3], bool) if mask_bt is None else jnp.asarray(mask_bt)
    mask.check("mask", mask_bt, shape[1:3])
    x_lbtx = jnp.where(mask_bt[..., None], upcast_half(logits_lbtx), 0)
    count = jnp.maximum(mask_bt.sum(), 1) * shape[0]
    share_bt1 = (mask_bt.astype(x_lbtx.dtype) / count.astype(x_lbtx.dtype))[..., None]
    f_x = (largest(jax.lax.stop_gradient(x_lbtx), per_token) * share_bt1).sum(axis=(0, 1, 2))
    p_x = (softmax(x_lbtx) * share_bt1).sum(axis=(0, 1, 2))
    z = (jax.nn.logsumexp(x_lbtx, axis=-1, keepdims=True) ** 2 * share_bt1).sum()
    aux = shape[3] * (f_x * p_x).sum()
    return (router_aux_weight * aux + router_z_weight * z).astype(logits_lbtx.dtype)


def share(mask_bt: jax.Array, total: jax.Array | int | None, dtype: Dtype) -> jax.Array:
    """Returns the share of these labels in all that count."""
    count = mask_bt.sum()
    return count.astype(dtype) / jnp.maximum(count if total is None else total, 1).astype(dtype)
