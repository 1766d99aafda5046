"""Mixtures of experts without loops over tokens: rows sorted by expert, and products of groups."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import framework, precision
from ..projection import Projections
from .int8 import Int8Projections, split
from .unpadding import Tokens, pad, unpad

__all__ = ["can_group", "grouped", "grouped_part"]

ALIGNED = 16  # bytes: rows of grouped products have a multiple of this


def can_group(x: Tensor, in_process: bool) -> bool:
    """Whether `grouped` can run: not under `torch.func`, nor in graphs that may run elsewhere."""
    if framework.exporting():
        return in_process
    return torch.compiler.is_compiling() or framework.has_values(x)


def grouped(experts: Callable[..., Tensor], x_btd: Tensor, weight_btx: Tensor, k: int) -> Tensor:
    """`sum_e w_e FFN_e(x)` over the k experts of the largest weights: `b t d`.

    experts: computes rows, given their weights and a function that multiplies them with the kernels
    of their experts.
    """
    weight_nk, expert_nk = weight_btx.flatten(0, 1).topk(k)
    expert_p, row_p = expert_nk.flatten().sort(stable=True)
    pairs = Tokens(row_p, row_p.argsort().view_as(expert_nk), torch.ones_like(expert_nk).bool())
    y_nkd = _of_pairs(experts, x_btd, weight_nk, expert_p, pairs, weight_btx.shape[2])
    return y_nkd.sum(1).view_as(x_btd)


def grouped_part(
    experts: Callable[..., Tensor], x_btd: Tensor, weight_btx: Tensor, k: int
) -> Tensor:
    """Computes `grouped` for some of the experts, of which a token has at most k, or none. The host
    waits for the number of pairs of a token and an expert; there is at least one, which gives every
    process gradients.
    """
    weight_nk, expert_nk = weight_btx.flatten(0, 1).topk(min(k, weight_btx.shape[2]))
    chosen_nk = weight_nk != 0
    chosen_nk[:1, :1] = True
    index_p = chosen_nk.flatten().nonzero()[:, 0]
    expert_p, order_p = expert_nk.flatten()[index_p].sort(stable=True)
    row_p, place_nk = index_p[order_p], torch.zeros_like(expert_nk)
    place_nk.view(-1)[row_p] = torch.arange(len(row_p), device=row_p.device)
    pairs = Tokens(row_p, place_nk, chosen_nk)
    y_nkd = _of_pairs(experts, x_btd, weight_nk, expert_p, pairs, weight_btx.shape[2])
    return y_nkd.masked_fill(~chosen_nk[..., None], 0).sum(1).view_as(x_btd)


def _of_pairs(
    experts: Callable[..., Tensor],
    x_btd: Tensor,
    weight_nk: Tensor,
    expert_p: Tensor,
    pairs: Tokens,
    count: int,
) -> Tensor:
    """The outputs of pairs of a token and an expert, `n k d`. expert_p: sorted, of `count`."""
    x_nkd = x_btd.flatten(0, 1)[:, None].expand(-1, weight_nk.shape[1], -1)
    x_pd, weight_p1 = unpad(x_nkd, pairs)[0], unpad(weight_nk[..., None], pairs)[0]
    end_x = torch.searchsorted(expert_p, torch.arange(count, device=x_btd.device), right=True)
    y_pd = experts(x_pd, weight_p1, partial(_affine, expert_p, end_x))
    return pad(y_pd[None], pairs)


def _affine(
    expert_p: Tensor, end_x: Tensor, projections: Projections | Int8Projections, x_pd: Tensor
) -> Tensor:
    """`x W_e + b_e` for rows sorted by expert."""
    if isinstance(projections, Int8Projections):
        return projections.grouped(x_pd, end_x)
    kernel_xdm: Tensor = projections.weight
    bias_xm = projections.bias
    if precision.autocasts(x_pd):
        dtype = torch.get_autocast_dtype(x_pd.device.type)
        x_pd, kernel_xdm = x_pd.to(dtype), kernel_xdm.to(dtype)
    product = grouped_products if torch.compiler.is_compiling() else products
    y_pm = product(x_pd, kernel_xdm, end_x)
    return y_pm if bias_xm is None else y_pm + bias_xm.to(y_pm.dtype).index_select(0, expert_p)


def products(x_pd: Tensor, kernel_xdm: Tensor, end_x: Tensor) -> Tensor:
    """`x W_e` for rows sorted by expert; end_x: where the rows of each expert end."""
    x_pd = x_pd.contiguous()  # as grouped products need it; gradients may be broadcast
    if _has_kernel(x_pd, kernel_xdm.shape[2]):
        return F.grouped_mm(x_pd, kernel_xdm, offs=end_x.int())
    groups = zip(split(x_pd, end_x), kernel_xdm.unbind(), strict=True)
    found = [own_nd @ kernel_dm for own_nd, kernel_dm in groups if len(own_nd)]
    return torch.cat(found) if found else x_pd @ kernel_xdm[0]


def kernel_gradients(x_pd: Tensor, g_pm: Tensor, end_x: Tensor) -> Tensor:
    """`x^T g` over the rows of each expert: `x d m`."""
    x_pd, g_pm = x_pd.contiguous(), g_pm.contiguous()
    if _has_kernel(x_pd, g_pm.shape[1]):
        return F.grouped_mm(x_pd.T, g_pm, offs=end_x.int())
    groups = zip(split(x_pd, end_x), split(g_pm, end_x), strict=True)
    return torch.stack([own_nd.T @ own_nm for own_nd, own_nm in groups])


def _has_kernel(x_pd: Tensor, outputs: int) -> bool:
    """Whether torch has a grouped product for this dtype and these sizes."""
    kinds = [torch.float32, torch.bfloat16, torch.float16]
    if x_pd.is_cuda:
        kinds = [torch.bfloat16] * (torch.cuda.get_device_capability(x_pd.device) >= (8, 0))
    elif not x_pd.is_cpu:
        return False
    of_rows = [size * x_pd.dtype.itemsize for size in (x_pd.shape[1], outputs)]
    return x_pd.dtype in kinds and not any(size % ALIGNED for size in of_rows)


# Graphs call this op: its number of rows per expert is known at run time.
grouped_products: Any = torch.library.custom_op(
    "impl_torch::grouped_products", products, mutates_args=()
)
grouped_kernel_gradients: Any = torch.library.custom_op(
    "impl_torch::grouped_kernel_gradients", kernel_gradients, mutates_args=()
)


@grouped_products.register_fake
def _(x_pd: Tensor, kernel_xdm: Tensor, end_x: Tensor) -> Tensor:
    return x_pd.new_empty(x_pd.shape[0], kernel_xdm.shape[2])


@grouped_kernel_gradients.register_fake
def _(x_pd: Tensor, g_pm: Tensor, end_x: Tensor) -> Tensor:
    return x_pd.new_empty(end_x.shape[0], x_pd.shape[1], g_pm.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, g_pm: Tensor) -> tuple[Tensor, Tensor, None]:
    x_pd, kernel_xdm, end_x = ctx.saved_tensors
    g_pd = grouped_products(g_pm, kernel_xdm.mT, end_x)
    return g_pd, grouped_kernel_gradients(x_pd, g_pm, end_x), None


grouped_products.register_autograd(_backward, setup_context=_keep)
