"""Scaled dot-product attention and multi-head attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import dtypes, mask, softmax
from .dropout import Dropout
from .linear import Linear

__all__ = ["MultiHeadAttention", "scaled_dot_product_attention"]

Output = Tensor | tuple[Tensor, Tensor]


def scaled_dot_product_attention(
    query_bthk: Tensor,
    key_bsgk: Tensor,
    value_bsge: Tensor,
    mask_bhts: Tensor | None = None,
    bias_bhts: Tensor | None = None,
    causal: bool = False,
    return_weights: bool = False,
    dropout: Dropout | None = None,
) -> Output:
    """torch's fused kernel, unless the weights must exist: because they are returned, or because dropout applies to them."""
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, _ = query_bthk.shape
    scores = (batch, heads, target, key_bsgk.shape[1])
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, dtypes.name(bias_bhts.dtype), scores)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, dtypes.name(mask_bhts.dtype), scores)
    if return_weights or dropout is not None:
        output_bthe, weights_bhts = _explicit(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, dropout)
        return (output_bthe, weights_bhts) if return_weights else output_bthe
    return _fused(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal)


def _fused(
    query_bthk: Tensor, key_bsgk: Tensor, value_bsge: Tensor, mask_bhts: Tensor | None, bias_bhts: Tensor | None, causal: bool
) -> Tensor:
    target, source = query_bthk.shape[1], key_bsgk.shape[1]
    # The kernel's own triangle is aligned top-left and takes no mask beside it. A single query, the last one, sees every key.
    triangle = causal and mask_bhts is None and bias_bhts is None and target == source
    if causal and not triangle and target > 1:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, source, query_bthk.device))
    if bias_bhts is not None:
        mask_bhts = bias_bhts if mask_bhts is None else torch.where(mask_bhts, bias_bhts, -torch.inf)
    output_bhte = F.scaled_dot_product_attention(
        query_bthk.transpose(1, 2),
        key_bsgk.transpose(1, 2),
        value_bsge.transpose(1, 2),
        attn_mask=mask_bhts,
        is_causal=triangle,
        enable_gqa=query_bthk.shape[2] != key_bsgk.shape[2],
    )
    return output_bhte.transpose(1, 2)


def _explicit(
    query_bthk: Tensor,
    key_bsgk: Tensor,
    value_bsge: Tensor,
    mask_bhts: Tensor | None,
    bias_bhts: Tensor | None,
    causal: bool,
    dropout: Dropout | None,
) -> tuple[Tensor, Tensor]:
    _, target, heads, head_size = query_bthk.shape
    key_bshk, value_bshe = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (key_bsgk, value_bsge))
    scaled_bthk = dtypes.widen(query_bthk) * head_size**-0.5
    logits_bhts = torch.einsum("bthk,bshk->bhts", scaled_bthk, dtypes.widen(key_bshk))
    if bias_bhts is not None:
        logits_bhts = logits_bhts + bias_bhts
        mask_bhts = mask.combine_masks(mask_bhts, bias_bhts > -torch.inf)
    if causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, key_bsgk.shape[1], query_bthk.device))
    weights_bhts = softmax.softmax(logits_bhts, mask_bhts).to(query_bthk.dtype)
    dropped_bhts = weights_bhts if dropout is None else dropout(weights_bhts)
    return torch.einsum("bhts,bshe->bthe", dropped_bhts, value_bshe), weights_bhts


class MultiHeadAttention(nn.Module):
    """Projections as linear layers, whose outputs are `(h k)`, `(g k)` and `(g e)`: the heads of one position lie side by side."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, bias = config.model_width, config.attention_bias
        self.heads, self.key_value_heads = config.heads, config.key_value_heads
        self.query = Linear(width, config.heads * config.key_size, bias)
        self.key = Linear(width, config.key_value_heads * config.key_size, bias)
        self.value = Linear(width, config.key_value_heads * config.value_size, bias)
        self.output = Linear(config.heads * config.value_size, width, bias)
        self.weights_dropout = Dropout(config.attention_dropout_rate)

    def forward(
        self,
        query_btd: Tensor,
        memory_bsd: Tensor,
        mask_bhts: Tensor | None = None,
        bias_bhts: Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.query.in_features)
        checks.check_features("memory", memory_bsd.shape, self.key.in_features)
        query_bthk = self.query(query_btd).unflatten(-1, (self.heads, -1))
        key_bsgk = self.key(memory_bsd).unflatten(-1, (self.key_value_heads, -1))
        value_bsge = self.value(memory_bsd).unflatten(-1, (self.key_value_heads, -1))
        dropout = self.weights_dropout if self.weights_dropout.active else None
        attended = scaled_dot_product_attention(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, return_weights, dropout)
        output_bthe, *weights = attended if isinstance(attended, tuple) else (attended,)
        output_btd = self.output(output_bthe.flatten(-2))
        return (output_btd, *weights) if return_weights else output_btd
