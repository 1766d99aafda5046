"""The training loss: cross-entropy with label smoothing (SMOOTH), and that of routers (BALANCE)."""

import numpy as np

from . import arithmetic, checks, experts, softmax
from .arrays import Array, Gradients, Mask, bounds

__all__ = [
    "cross_entropy",
    "cross_entropy_vjp",
    "router_loss",
    "router_loss_vjp",
    "teacher_forcing",
]


def teacher_forcing(target_bt: Array) -> tuple[Array, Array]:
    """Returns the decoder's input, all but the last token, and the labels, all but the first.

    Row t is scored on token t + 1. Raises ValueError unless target is integers `b t`, t at least 2.
    """
    checks.check_target(target_bt.shape, str(target_bt.dtype))
    return target_bt[:, :-1], target_bt[:, 1:]


def cross_entropy(
    logits_btv: Array,
    label_bt: Array,
    mask_bt: Mask = None,
    smoothing: float = 0.0,
    total: int | None = None,
) -> Array:
    """`L = -1/total sum_bt mask sum_v q_v log p_v`, `p = softmax(logits)`,
    `q_v = (1 - smoothing) [v = label] + smoothing / V` (SMOOTH).

    label_bt: the true ids. mask_bt: boolean, True = counts; default all True. smoothing: the share
    of each label spread over all V tokens, including the true one. total: the number of labels that
    count in the whole batch, default those of this batch; losses and gradients of the parts of a
    batch, each with the batch's total, add up to those of the batch. If no label counts, the loss
    is 0. Half-precision dtypes compute in float32. Returns a scalar. Raises ValueError on invalid
    shapes, dtypes and ids. Source: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section
    5.4.
    """
    weight_bt = _weight(logits_btv, label_bt, mask_bt, smoothing, total)
    log_p_btv = log_softmax(arithmetic.upcast_half(logits_btv))
    number = log_p_btv.dtype.type
    true_bt = np.take_along_axis(log_p_btv, label_bt[..., None], axis=-1)[..., 0]
    loss_bt = -number(1 - smoothing) * true_bt
    if smoothing:
        loss_bt = loss_bt - number(smoothing) * arithmetic.mean(log_p_btv, axis=-1)[..., 0]
    # Labels that do not count add nothing, whatever their logits.
    counted_bt = np.where(weight_bt > 0, loss_bt, number(0)) * weight_bt
    return arithmetic.sum(counted_bt.reshape(-1), axis=0).reshape(()).astype(logits_btv.dtype)


def cross_entropy_vjp(
    logits_btv: Array,
    label_bt: Array,
    mask_bt: Mask = None,
    smoothing: float = 0.0,
    total: int | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """`dL/dlogits = mask (p - q) / total`, times the cotangent, where p is `softmax(logits)`."""
    weight_bt = _weight(logits_btv, label_bt, mask_bt, smoothing, total)
    p_btv = softmax.softmax(arithmetic.upcast_half(logits_btv))
    number = p_btv.dtype.type
    gradient_btv = p_btv - number(smoothing / logits_btv.shape[-1])
    true_bt1 = np.take_along_axis(gradient_btv, label_bt[..., None], axis=-1)
    np.put_along_axis(gradient_btv, label_bt[..., None], true_bt1 - number(1 - smoothing), axis=-1)
    factor_bt = weight_bt * arithmetic.upcast_half(np.asarray(cotangent)).astype(number)
    gradient_btv = np.where(weight_bt[..., None] > 0, gradient_btv, number(0))
    gradient_btv = gradient_btv * factor_bt[..., None]
    return {"logits_btv": gradient_btv.astype(logits_btv.dtype)}


def router_loss(
    logits_lbtx: Array,
    per_token: int,
    mask_bt: Mask = None,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
) -> Array:
    """`L = aux X sum_x f_x p_x + z mean_lbt (log sum_x e^logits)^2` (BALANCE).

    f_x: how many experts x an average token chooses, if it chooses the per_token largest logits.
    p_x: the mean of `softmax(logits)`. Both are over the tokens of all layers together. aux, z:
    router_aux_weight and router_z_weight. logits_lbtx: of the router of each layer with experts,
    with its bias. mask_bt: boolean, True = counts; default all True. If no token counts, the loss
    is 0. Half-precision dtypes compute in float32. Returns a scalar. Raises ValueError on invalid
    shapes, dtypes and weights. Source: Fedus et al. 2022, Switch Transformers, eq. 4-6, as the
    library transformers computes it for Mixtral; z: Zoph et al. 2022, ST-MoE, eq. 5.
    """
    x_nx, share_n1, f_x = _routed(
        logits_lbtx, per_token, mask_bt, router_aux_weight, router_z_weight
    )
    p_x = arithmetic.sum(softmax.softmax(x_nx) * share_n1, axis=0)[0]
    z = arithmetic.sum(log_sum(x_nx) ** 2 * share_n1, axis=0)[0, 0]
    aux = arithmetic.sum(f_x * p_x, axis=0)[0] * x_nx.dtype.type(len(f_x))
    value = x_nx.dtype.type(router_aux_weight) * aux + x_nx.dtype.type(router_z_weight) * z
    return np.asarray(value).astype(logits_lbtx.dtype)


def router_loss_vjp(
    logits_lbtx: Array,
    per_token: int,
    mask_bt: Mask = None,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
    *,
    cotangent: Array,
) -> Gradients:
    """Returns logits_lbtx: the gradient through p and log sum; f is constant."""
    x_nx, share_n1, f_x = _routed(
        logits_lbtx, per_token, mask_bt, router_aux_weight, router_z_weight
    )
    number = x_nx.dtype.type
    g_nx = np.broadcast_to(f_x * number(router_aux_weight * len(f_x)), x_nx.shape)
    g_nx = softmax.softmax_vjp(x_nx, cotangent=g_nx)["logits"]
    g_nx = g_nx + number(2 * router_z_weight) * log_sum(x_nx) * softmax.softmax(x_nx)
    g_nx = g_nx * share_n1 * arithmetic.upcast_half(np.asarray(cotangent)).astype(number)
    return {"logits_lbtx": g_nx.reshape(logits_lbtx.shape).astype(logits_lbtx.dtype)}


def _routed(
    logits_lbtx: Array, per_token: int, mask_bt: Mask, *weights: float
) -> tuple[Array, Array, Array]:
    """Returns the logits of n tokens, the share of each in a mean, `n 1`, and f.

    Logits that do not count are 0, whatever they were, and have no share.
    """
    checks.check_router_loss(logits_lbtx.shape, per_token, *weights)
    layers, *tokens, count = logits_lbtx.shape
    if mask_bt is None:
        mask_bt = np.ones(tokens, dtype=bool)
    checks.check_token_mask("mask", mask_bt.shape, str(mask_bt.dtype), tokens)
    real_n1 = np.tile(mask_bt.reshape(-1, 1), (layers, 1))
    x_nx = arithmetic.upcast_half(logits_lbtx).reshape(-1, count)
    x_nx = np.where(real_n1, x_nx, x_nx.dtype.type(0))
    share_n1 = real_n1 / x_nx.dtype.type(max(int(real_n1.sum()), 1))
    f_x = arithmetic.sum(experts.largest(x_nx, per_token) * share_n1, axis=0)[0]
    return x_nx, share_n1, f_x


def share(mask_bt: Array, total: int | None) -> float:
    """Returns the share of these labels in all that count."""
    count = int(mask_bt.sum())
    return count / max(count if total is None else total, 1)


def _weight(
    logits_btv: Array, label_bt: Array, mask_bt: Mask, smoothing: float, total: int | None
) -> Array:
    """Returns the weight of each label's loss: 1 / total if it counts, otherwise 0."""
    shapes, kind = (logits_btv.shape, label_bt.shape), str(label_bt.dtype)
    checks.check_labels(*shapes, kind, smoothing, total, *bounds(label_bt))
    if mask_bt is None:
        mask_bt = np.ones(label_bt.shape, dtype=bool)
    checks.check_token_mask("mask", mask_bt.shape, str(mask_bt.dtype), label_bt.shape)
    count = int(mask_bt.sum()) if total is None else total
    return mask_bt / arithmetic.upcast_half(logits_btv).dtype.type(max(count, 1))


def log_softmax(x_btv: Array) -> Array:
    shifted_btv = x_btv - np.max(x_btv, axis=-1, keepdims=True)
    return shifted_btv - np.log(arithmetic.sum(arithmetic.exp(shifted_btv), axis=-1))


def log_sum(x: Array) -> Array:
    """`log sum e^x` over the last axis, which is kept with size 1."""
    high = np.max(x, axis=-1, keepdims=True)
    return high + np.log(arithmetic.sum(arithmetic.exp(x - high), axis=-1))
