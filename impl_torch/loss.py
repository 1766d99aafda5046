"""The training loss: cross-entropy with label smoothing (SMOOTH), and that of routers (BALANCE)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_numpy import checks

from . import framework, mask, precision, softmax
from .experts import largest
from .values import Text

__all__ = ["cross_entropy", "router_loss", "teacher_forcing"]


def teacher_forcing(target_bt: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the input `target[:, :-1]` and the labels `target[:, 1:]`, as views."""
    checks.check_target(target_bt.shape, precision.dtype_name(target_bt.dtype))
    return target_bt[:, :-1], target_bt[:, 1:]


def shifted(target: Text) -> tuple[Text, Text]:
    """Splits a target and its mask as `teacher_forcing` does."""
    ids = teacher_forcing(target.ids)
    if target.mask is None:
        return Text(ids[0]), Text(ids[1])
    return Text(ids[0], target.mask[:, :-1]), Text(ids[1], target.mask[:, 1:])


def cross_entropy(
    logits_btv: Tensor,
    label_bt: Tensor,
    mask_bt: Tensor | None = None,
    smoothing: float = 0.0,
    total: int | Tensor | None = None,
) -> Tensor:
    """`log sum_v e^x_v - (1 - smoothing) x_label - smoothing mean_v x_v`, summed over the labels
    that count and divided by total: a scalar.

    Equals `F.cross_entropy`, for which `torch.compile` computes the gradient from rounded
    logarithms: summed over the vocabulary it is off from 0, always with the same sign, and training
    drifts. Under autocast the loss of half-precision logits is float32, as in torch; otherwise it
    has the dtype of the logits. total: a tensor if one compiled graph must serve every count.
    """
    bounds = framework.bounds(label_bt)
    return unchecked(logits_btv, label_bt, mask_bt, smoothing, total, bounds)


def unchecked(
    logits_btv: Tensor,
    label_bt: Tensor,
    mask_bt: Tensor | None,
    smoothing: float,
    total: int | Tensor | None,
    bounds: Sequence[int] = (),
) -> Tensor:
    """Computes `cross_entropy` of labels that are checked, or whose bounds are passed."""
    known_total = None if isinstance(total, Tensor) else total
    kind = precision.dtype_name(label_bt.dtype)
    checks.check_labels(logits_btv.shape, label_bt.shape, kind, smoothing, known_total, *bounds)
    x_btv = precision.upcast_half(logits_btv)
    mask.check("mask", mask_bt, label_bt.shape)
    if mask_bt is not None:
        # This comes first, so that infinite logits of uncounted labels give no NaN gradient.
        x_btv = x_btv.masked_fill(~mask_bt[..., None], 0)
    label_x_bt = x_btv.gather(-1, label_bt.long()[..., None])[..., 0]
    loss_bt = x_btv.logsumexp(-1) - (1 - smoothing) * label_x_bt
    if smoothing:
        loss_bt = loss_bt - smoothing * x_btv.mean(-1)
    if total is None:
        total = max(label_bt.numel(), 1) if mask_bt is None else mask_bt.sum().clamp(min=1)
    counted_bt = loss_bt if mask_bt is None else loss_bt.masked_fill(~mask_bt, 0)
    loss = counted_bt.sum() / total
    # Autocast, not the caller, chose the half-precision dtype of the logits.
    return loss if precision.autocasts(logits_btv) else loss.to(logits_btv.dtype)


def router_loss(
    logits_lbtx: Tensor,
    per_token: int,
    mask_bt: Tensor | None = None,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
) -> Tensor:
    """`L = aux X sum_x f_x p_x + z mean_lbt (log sum_x e^logits)^2`, over the tokens that count.

    f_x: how many experts x an average token of all layers chooses, if it chooses the per_token
    largest logits; constant for the gradient. p_x: the mean of `softmax(logits)`. The gradient of
    `logsumexp` is not used, since it exponentiates a rounded logarithm.
    """
    weights, shape = (router_aux_weight, router_z_weight), logits_lbtx.shape
    checks.check_router_loss(shape, per_token, *weights)
    if mask_bt is None:
        mask_bt = torch.ones(shape[1:3], dtype=torch.bool, device=logits_lbtx.device)
    mask.check("mask", mask_bt, shape[1:3])
    x_lbtx = precision.upcast_half(logits_lbtx).masked_fill(~mask_bt[..., None], 0)
    share_bt1 = mask_bt[..., None].to(x_lbtx.dtype) / (mask_bt.sum().clamp(min=1) * shape[0])
    f_x = (largest(x_lbtx.detach(), per_token) * share_bt1).sum((0, 1, 2))
    p_x = (softmax.softmax(x_lbtx) * share_bt1).sum((0, 1, 2))
    high_lbt1 = x_lbtx.detach().amax(-1, keepdim=True)
    log_z_lbt1 = high_lbt1 + (x_lbtx - high_lbt1).exp().sum(-1, keepdim=True).log()
    z = (log_z_lbt1.square() * share_bt1).sum()
    aux = shape[3] * (f_x * p_x).sum()
    return (router_aux_weight * aux + router_z_weight * z).to(logits_lbtx.dtype)


def share(mask_bt: Tensor, total: int | Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns the share of these labels in all that count."""
    count = mask_bt.sum()
    return count.to(dtype) / (count.clamp(min=1) if total is None else total)
