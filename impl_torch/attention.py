"""Scaled dot-product attention and multi-head attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import framework, mask, precision, softmax
from .dropout import Dropout, dropout
from .projection import Linear

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
    keep_bhts: Tensor | None = None,
    dropout_rate: float = 0.0,
    training: bool = False,
) -> Output:
    """torch's fused kernel, which draws its own dropout, unless the weights must exist: to be returned, or to meet a keep mask.

    training: as in `F.dropout`. Without a keep mask, it drops weights at random.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, _ = query_bthk.shape
    scores = (batch, heads, target, key_bsgk.shape[1])
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, precision.name(bias_bhts.dtype), scores)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, precision.name(mask_bhts.dtype), scores)
    if return_weights or keep_bhts is not None:
        weights_bhts = _weights(query_bthk, key_bsgk, mask_bhts, bias_bhts, causal)
        dropped_bhts = dropout(weights_bhts, keep_bhts, dropout_rate, training)
        output_bthe = torch.einsum("bhts,bshe->bthe", dropped_bhts, _repeat(value_bsge, heads))
        return (output_bthe, weights_bhts) if return_weights else output_bthe
    return _fused(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, dropout_rate if training else 0.0)


def _fused(
    query_bthk: Tensor,
    key_bsgk: Tensor,
    value_bsge: Tensor,
    mask_bhts: Tensor | None,
    bias_bhts: Tensor | None,
    causal: bool,
    dropout_rate: float,
) -> Tensor:
    """By torch's kernel. An empty row is 0 by construction (EMPTY), unless every kernel that may serve is known to give 0."""
    target, source = query_bthk.shape[1], key_bsgk.shape[1]
    # The kernel's own triangle is aligned top-left and takes no mask beside it. A single query, the last one, sees every key.
    triangle = causal and mask_bhts is None and bias_bhts is None and framework.same_size(target, source)
    if causal and not triangle and target > 1:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, source, query_bthk.device))
    if bias_bhts is not None:
        bias_bhts = bias_bhts.to(query_bthk.dtype)  # cuDNN reads another dtype's bits as its own
        mask_bhts = bias_bhts if mask_bhts is None else torch.where(mask_bhts, bias_bhts, -torch.inf)
    present_bht1 = None
    if mask_bhts is not None and not _zeroes_empty_rows(query_bthk):
        mask_bhts, present_bht1 = _fill_empty_rows(mask_bhts)
    output_bhte = F.scaled_dot_product_attention(
        query_bthk.transpose(1, 2),
        key_bsgk.transpose(1, 2),
        value_bsge.transpose(1, 2),
        attn_mask=mask_bhts,
        dropout_p=dropout_rate,
        is_causal=triangle,
        enable_gqa=not framework.same_size(query_bthk.shape[2], key_bsgk.shape[2]),
    )
    if present_bht1 is not None:
        output_bhte = output_bhte.masked_fill(~present_bht1, 0)
    return output_bhte.transpose(1, 2)


def _zeroes_empty_rows(query_bthk: Tensor) -> bool:
    """Whether every kernel that may serve gives 0 for a row without keys, and no NaN backward.

    Those of the CPU do, and on CUDA math and memory-efficient attention. cuDNN, which serves half types, does so forward; backward its
    gradient is NaN at some lengths where the row's log-sum-exp is below -88. An exported graph is run by kernels that nobody knows.
    """
    if framework.exporting():
        return False
    if query_bthk.is_cuda and torch.is_grad_enabled():
        return query_bthk.dtype.itemsize > 2 and not precision.autocasts(query_bthk)
    return query_bthk.is_cpu or query_bthk.is_cuda


def _fill_empty_rows(mask_bhts: Tensor) -> tuple[Tensor, Tensor]:
    """A mask or bias that lets a row without keys attend to all of them, finite forward and backward, and which rows have a key."""
    if mask_bhts.dtype == torch.bool:
        present_bht1 = mask_bhts.any(dim=-1, keepdim=True)
        return mask_bhts | ~present_bht1, present_bht1
    present_bht1 = (mask_bhts > -torch.inf).any(dim=-1, keepdim=True)
    return mask_bhts.masked_fill(~present_bht1, 0), present_bht1


def _weights(query_bthk: Tensor, key_bsgk: Tensor, mask_bhts: Tensor | None, bias_bhts: Tensor | None, causal: bool) -> Tensor:
    _, target, heads, head_size = query_bthk.shape
    scaled_bthk = precision.widen(query_bthk) * head_size**-0.5
    logits_bhts = torch.einsum("bthk,bshk->bhts", scaled_bthk, precision.widen(_repeat(key_bsgk, heads)))
    if bias_bhts is not None:
        logits_bhts = logits_bhts + bias_bhts
        mask_bhts = mask.combine_masks(mask_bhts, bias_bhts > -torch.inf)
    if causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, key_bsgk.shape[1], query_bthk.device))
    return softmax.softmax(logits_bhts, mask_bhts).to(query_bthk.dtype)


def _repeat(x_bsge: Tensor, heads: int) -> Tensor:
    """A key or value head for each query head."""
    return x_bsge.repeat_interleave(heads // x_bsge.shape[2], dim=2)


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
        keep_bhts: Tensor | None = None,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.query.in_features)
        checks.check_features("memory", memory_bsd.shape, self.key.in_features)
        key_bsgk, value_bsge = self.keys_and_values(memory_bsd)
        return self.attend(self.queries(query_btd), key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, return_weights, keep_bhts)

    def queries(self, query_btd: Tensor) -> Tensor:
        """Their projection, `b t h k`."""
        return self.query(query_btd).unflatten(-1, (self.heads, -1))

    def keys_and_values(self, memory_bsd: Tensor) -> tuple[Tensor, Tensor]:
        """The part that no query changes: key `b s g k` and value `b s g e`."""
        heads = (self.key_value_heads, -1)
        return self.key(memory_bsd).unflatten(-1, heads), self.value(memory_bsd).unflatten(-1, heads)

    def project(self, x_btd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of self-attention."""
        return self.queries(x_btd), *self.keys_and_values(x_btd)

    def attend(
        self,
        query_bthk: Tensor,
        key_bsgk: Tensor,
        value_bsge: Tensor,
        mask_bhts: Tensor | None = None,
        bias_bhts: Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
        keep_bhts: Tensor | None = None,
    ) -> Output:
        """The rest: the attention of these queries to these keys and values, and the output's projection."""
        dropout_rate, training = self.weights_dropout.rate, self.weights_dropout.training
        attended = scaled_dot_product_attention(
            query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, return_weights, keep_bhts, dropout_rate, training
        )
        output_bthe, *weights = attended if isinstance(attended, tuple) else (attended,)
        output_btd = self.output(output_bthe.flatten(-2))
        return (output_btd, *weights) if return_weights else output_btd
