"""Attention by torch's fused kernels, which never store the weights."""

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_numpy import checks
from reference_numpy.scores import Scores

from .. import framework, mask, precision
from ..values import Heads

__all__ = ["sdpa"]


def sdpa(heads: Heads, mask_bhts: Tensor | None, scores: Scores, rate: float) -> Tensor:
    """`softmax(query key^T / sqrt(k) + mask) value` by `F.scaled_dot_product_attention`: `b t h e`.

    Scores have no cap. rate: dropout of the weights. Fully masked rows are zeroed here (EMPTY),
    unless every eligible kernel is known to return 0.
    """
    query_bthk, key_bsgk, value_bsge = heads
    (batch, target, count, _), source = query_bthk.shape, key_bsgk.shape[1]
    device = query_bthk.device
    if mask_bhts is not None:
        kind, shape = precision.dtype_name(mask_bhts.dtype), (batch, count, target, source)
        checks.check_attention_mask(mask_bhts.shape, kind, shape)
        if mask_bhts.is_floating_point():
            # cuDNN reads the bits of another dtype as its own.
            mask_bhts = mask_bhts.to(query_bthk.dtype)
    window = scores.window
    if window and not (framework.fits(target, window) and framework.fits(source, window)):
        window_bhts = mask.window_mask(target, source, window, device)
        mask_bhts = mask.combine_masks(mask_bhts, window_bhts)
    # The kernel's causal mask is aligned top-left and excludes another mask. A single query, the
    # last one, sees every key.
    triangle = scores.causal and mask_bhts is None and framework.same_size(target, source)
    if scores.causal and not triangle and not framework.fits(target, 1):
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, source, device))
    present_bht1 = None
    if mask_bhts is not None and not _zeroes_empty_rows(query_bthk):
        mask_bhts, present_bht1 = _fill_empty_rows(mask_bhts)
    output_bhte = F.scaled_dot_product_attention(
        query_bthk.transpose(1, 2),
        key_bsgk.transpose(1, 2),
        value_bsge.transpose(1, 2),
        attn_mask=mask_bhts,
        dropout_p=rate,
        is_causal=triangle,
        scale=scores.scale,
        enable_gqa=not framework.same_size(query_bthk.shape[2], key_bsgk.shape[2]),
    )
    if present_bht1 is not None:
        output_bhte = output_bhte.masked_fill(~present_bht1, 0)
    return output_bhte.transpose(1, 2)


def _zeroes_empty_rows(query_bthk: Tensor) -> bool:
    """Whether every eligible kernel returns 0 for a fully masked row, and no NaN backward.

    CPU kernels do; on CUDA, the math and memory-efficient kernels do. cuDNN, used for
    half-precision dtypes, does so forward, but its gradient is NaN at some lengths if the row's
    log-sum-exp is below -88. An exported graph may run on any kernel.
    """
    if framework.exporting():
        return False
    if query_bthk.is_cuda and torch.is_grad_enabled():
        return query_bthk.dtype.itemsize > 2 and not precision.autocasts(query_bthk)
    return query_bthk.is_cpu or query_bthk.is_cuda


def _fill_empty_rows(mask_bhts: Tensor) -> tuple[Tensor, Tensor]:
    """Lets fully masked rows attend to all keys; also returns which rows have a key."""
    if mask_bhts.dtype == torch.bool:
        present_bht1 = mask_bhts.any(dim=-1, keepdim=True)
        return mask_bhts | ~present_bht1, present_bht1
    present_bht1 = (mask_bhts > -torch.inf).any(dim=-1, keepdim=True)
    return mask_bhts.masked_fill(~present_bht1, 0), present_bht1
