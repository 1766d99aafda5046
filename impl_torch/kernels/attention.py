"""Attention by torch's fused kernels, which never store the weights."""

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_numpy import checks
from reference_numpy.scores import Scores

from .. import framework, mask, precision
from ..values import Heads

__all__ = ["sdpa"]

MORE = 8  # features added to the heads for a sink


def sdpa(heads: Heads, mask_bhts: Tensor | None, scores: Scores, rate: float) -> Tensor:
    """`softmax(query key^T / sqrt(k) + mask) value` by `F.scaled_dot_product_attention`: `b t h e`.

    Scores have no cap. rate: dropout of the weights. Fully masked rows are zeroed here (EMPTY),
    unless every eligible kernel is known to return 0, or there is a sink, which is never masked.
    """
    query_bthk, key_bsgk, value_bsge, sink_h = heads
    (batch, target, count, key_size), source = query_bthk.shape, key_bsgk.shape[1]
    device = query_bthk.device
    if sink_h is not None:
        checks.check_sink(sink_h.shape, count)
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
    if sink_h is not None:
        heads, mask_bhts = _beside_sink(heads, sink_h, mask_bhts, scores, triangle)
        output_bthe = _attended(heads, mask_bhts, scores.factor(key_size), rate, triangle)
        return output_bthe[:, int(triangle) :, :, : value_bsge.shape[3]]
    present_bht1 = None
    if mask_bhts is not None and not _zeroes_empty_rows(query_bthk):
        mask_bhts, present_bht1 = _fill_empty_rows(mask_bhts)
    output_bthe = _attended(heads, mask_bhts, scores.scale, rate, triangle)
    if present_bht1 is not None:
        output_bthe = output_bthe.masked_fill(~present_bht1.transpose(1, 2), 0)
    return output_bthe


def _attended(
    heads: Heads, mask_bhts: Tensor | None, scale: float | None, rate: float, triangle: bool
) -> Tensor:
    """Calls the kernel: `b t h e`."""
    query_bhtk, key_bgsk, value_bgse = (x.transpose(1, 2) for x in heads[:3])
    output_bhte = F.scaled_dot_product_attention(
        query_bhtk,
        key_bgsk,
        value_bgse,
        attn_mask=mask_bhts,
        dropout_p=rate,
        is_causal=triangle,
        scale=scale,
        enable_gqa=not framework.same_size(query_bhtk.shape[1], key_bgsk.shape[1]),
    )
    return output_bhte.transpose(1, 2)


def _beside_sink(
    heads: Heads, sink_h: Tensor, mask_bhts: Tensor | None, scores: Scores, triangle: bool
) -> tuple[Heads, Tensor | None]:
    """Prepends a key without a value, whose score is the sink of each head; if the kernel masks a
    triangle, also a query, which only sees that key.

    Further features of queries and keys hold the sinks: two, since half precision rounds, padded to
    a size that all kernels accept.
    """
    query_bthk, key_bsgk, value_bsge, _ = heads
    (batch, target, count, size), (_, source, groups, _) = query_bthk.shape, key_bsgk.shape
    wide_h = precision.upcast_half(sink_h) / scores.factor(size)
    high_h = wide_h.to(query_bthk.dtype)
    of_sink_hk = torch.stack([high_h, (wide_h - high_h).to(high_h.dtype)], dim=1)
    of_sink_hk = F.pad(of_sink_hk, (0, MORE - 2)).expand(batch, target, count, MORE)
    query_bthk = torch.cat([query_bthk, of_sink_hk], dim=3)
    if triangle:
        query_bthk = F.pad(query_bthk, (0, 0, 0, 0, 1, 0))
    sink_b1gk = F.pad(key_bsgk.new_ones(batch, 1, groups, MORE), (size, 0))
    key_bsgk = torch.cat([sink_b1gk, F.pad(key_bsgk, (0, MORE))], dim=1)
    if mask_bhts is not None:
        value = True if mask_bhts.dtype == torch.bool else 0.0
        mask_bhts = F.pad(mask_bhts.expand(*mask_bhts.shape[:3], source), (1, 0), value=value)
    return Heads(query_bthk, key_bsgk, F.pad(value_bsge, (0, MORE, 0, 0, 1, 0))), mask_bhts


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
