"""Scaled dot-product attention and multi-head attention."""

import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import mask, precision, softmax
from .dropout import Dropout, dropout
from .fast import attention as fast_attention
from .fast.packing import Packing, pack, unpack
from .framework import is_changed
from .projection import linear

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
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`: `b t h e`, or that and the weights `b h t s`.

    The weights exist where they are returned or meet a keep mask; otherwise torch's fused kernel computes the output without holding them.
    dropout_rate, training: as of `F.dropout`; in training, without a keep mask, weights are dropped at random.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, _ = query_bthk.shape
    scores = (batch, heads, target, key_bsgk.shape[1])
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, precision.dtype_name(bias_bhts.dtype), scores)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, precision.dtype_name(mask_bhts.dtype), scores)
    if return_weights or keep_bhts is not None:
        weights_bhts = _weights(query_bthk, key_bsgk, mask_bhts, bias_bhts, causal)
        dropped_bhts = dropout(weights_bhts, keep_bhts, dropout_rate, training)
        output_bthe = torch.einsum("bhts,bshe->bthe", dropped_bhts, repeat_kv(value_bsge, heads))
        return (output_bthe, weights_bhts) if return_weights else output_bthe
    return fast_attention.sdpa(
        query_bthk,
        key_bsgk,
        value_bsge,
        mask_bhts,
        bias_bhts,
        causal,
        dropout_rate if training else 0.0,
    )


def _weights(
    query_bthk: Tensor,
    key_bsgk: Tensor,
    mask_bhts: Tensor | None,
    bias_bhts: Tensor | None,
    causal: bool,
) -> Tensor:
    """`softmax(query key^T / sqrt(k) + bias)`, the logits in float32 where the query is half-precision."""
    _, target, heads, head_size = query_bthk.shape
    scaled_bthk = precision.upcast_half(query_bthk) * head_size**-0.5
    logits_bhts = torch.einsum(
        "bthk,bshk->bhts", scaled_bthk, precision.upcast_half(repeat_kv(key_bsgk, heads))
    )
    if bias_bhts is not None:
        logits_bhts = logits_bhts + bias_bhts
        mask_bhts = mask.combine_masks(mask_bhts, bias_bhts > -torch.inf)
    if causal:
        mask_bhts = mask.combine_masks(
            mask_bhts, mask.causal_mask(target, key_bsgk.shape[1], query_bthk.device)
        )
    return softmax.softmax(logits_bhts, mask_bhts).to(query_bthk.dtype)


def repeat_kv(x_bsge: Tensor, heads: int) -> Tensor:
    """Keys or values with each head as many times as query heads share it."""
    return x_bsge.repeat_interleave(heads // x_bsge.shape[2], dim=2)


class MultiHeadAttention(nn.Module):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`, `output = sum_i head_i W_i^O + b^O`.

    The projections are linear layers with outputs `(h k)`, `(g k)` and `(g e)`: the heads of one position lie side by side. How many there
    are follows from the outputs, so that tensor parallelism may give each process some of them.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, bias = config.model_width, config.attention_bias
        self.width, self.key_size, self.value_size = width, config.key_size, config.value_size
        self.query = linear(width, config.heads * config.key_size, bias)
        self.key = linear(width, config.key_value_heads * config.key_size, bias)
        self.value = linear(width, config.key_value_heads * config.value_size, bias)
        self.output = linear(config.heads * config.value_size, width, bias)
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
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.width)
        checks.check_features("memory", memory_bsd.shape, self.width)
        key_bsgk, value_bsge = (unpack(x, memory_packing) for x in self.keys_and_values(memory_bsd))
        query_bthk = unpack(self.queries(query_btd), packing)
        return self.attend(
            query_bthk,
            key_bsgk,
            value_bsge,
            mask_bhts,
            bias_bhts,
            causal,
            return_weights,
            keep_bhts,
            packing,
        )

    def queries(self, query_btd: Tensor) -> Tensor:
        """`x W^Q + b^Q`, `b t h k`."""
        return self.query(query_btd).unflatten(-1, (-1, self.key_size))

    def keys_and_values(self, memory_bsd: Tensor) -> tuple[Tensor, Tensor]:
        """`m W^K + b^K` and `m W^V + b^V`, which no query changes: key `b s g k` and value `b s g e`."""
        key, value = self.key(memory_bsd), self.value(memory_bsd)
        return key.unflatten(-1, (-1, self.key_size)), value.unflatten(-1, (-1, self.value_size))

    def project(self, x_btd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of self-attention, all of one input."""
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
        packing: Packing | None = None,
    ) -> Output:
        """The attention of these queries to these keys and values, and the projection of its output."""
        drop = self.weights_dropout
        if is_changed(drop) or not isinstance(
            drop, Dropout
        ):  # it is to see the weights, which a kernel that drops some itself never holds
            seen_bhts = _weights(query_bthk, key_bsgk, mask_bhts, bias_bhts, causal)
            left_bhts = drop(seen_bhts) if keep_bhts is None else drop(seen_bhts, keep_bhts)
            attended: Output = (
                torch.einsum(
                    "bhts,bshe->bthe", left_bhts, repeat_kv(value_bsge, query_bthk.shape[2])
                ),
                seen_bhts,
            )
        else:
            attended = scaled_dot_product_attention(
                query_bthk,
                key_bsgk,
                value_bsge,
                mask_bhts,
                bias_bhts,
                causal,
                return_weights,
                keep_bhts,
                drop.rate,
                drop.training,
            )
        output_bthe, *weights = attended if isinstance(attended, tuple) else (attended,)
        output_btd = self.output(pack(output_bthe.flatten(-2), packing))
        return (output_btd, *weights) if return_weights else output_btd
