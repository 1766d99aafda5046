"""Scaled dot-product attention and multi-head attention."""

import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks

from . import mask, precision, rotary, softmax
from .dropout import Dropout, dropout
from .framework import is_changed
from .kernels.attention import sdpa
from .kernels.unpadding import in_rows
from .normalization import norm
from .projection import linear
from .rotary import Rotation

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
    window: int = 0,
    scale: float | None = None,
    cap: float | None = None,
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`: `b t h e`, or
    that and the weights `b h t s`.

    Without return_weights, keep mask and cap, torch's fused kernel computes the output and never
    holds the weights. dropout_rate, training: see `F.dropout`; in training, without a keep mask,
    weights are dropped at random. window: hides keys as far away as that (WINDOW). scale: in place
    of `1 / sqrt(k)`. cap: `soft_cap` of the scaled logits (SOFTCAP).
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, _ = query_bthk.shape
    scores = (batch, heads, target, key_bsgk.shape[1])
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, precision.dtype_name(bias_bhts.dtype), scores)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, precision.dtype_name(mask_bhts.dtype), scores)
    if return_weights or keep_bhts is not None or cap is not None:
        weights_bhts = _weights(
            query_bthk, key_bsgk, mask_bhts, bias_bhts, causal, window, scale, cap
        )
        dropped_bhts = dropout(weights_bhts, keep_bhts, dropout_rate, training)
        output_bthe = _weighted(dropped_bhts, value_bsge)
        return (output_bthe, weights_bhts) if return_weights else output_bthe
    rate = dropout_rate if training else 0.0
    return sdpa(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, rate, window, scale)


def _weights(
    query_bthk: Tensor,
    key_bsgk: Tensor,
    mask_bhts: Tensor | None,
    bias_bhts: Tensor | None,
    causal: bool,
    window: int,
    scale: float | None,
    cap: float | None,
) -> Tensor:
    """`softmax(soft_cap(query key^T / sqrt(k)) + bias)`, with logits in float32 if the query is
    half-precision.
    """
    _, target, heads, head_size = query_bthk.shape
    scale = head_size**-0.5 if scale is None else scale
    scaled_bthk = precision.upcast_half(query_bthk) * scale
    key_bshk = precision.upcast_half(repeat_kv(key_bsgk, heads))
    logits_bhts = torch.einsum("bthk,bshk->bhts", scaled_bthk, key_bshk)
    if cap is not None:
        logits_bhts = softmax.soft_cap(logits_bhts, cap)
    if bias_bhts is not None:
        logits_bhts = logits_bhts + bias_bhts
        mask_bhts = mask.combine_masks(mask_bhts, bias_bhts > -torch.inf)
    if causal:
        triangle_bhts = mask.causal_mask(target, key_bsgk.shape[1], query_bthk.device)
        mask_bhts = mask.combine_masks(mask_bhts, triangle_bhts)
    if window:
        window_bhts = mask.window_mask(target, key_bsgk.shape[1], window, query_bthk.device)
        mask_bhts = mask.combine_masks(mask_bhts, window_bhts)
    return softmax.softmax(logits_bhts, mask_bhts).to(query_bthk.dtype)


def _weighted(weights_bhts: Tensor, value_bsge: Tensor) -> Tensor:
    """`weights value`, `b t h e`."""
    value_bshe = repeat_kv(value_bsge, weights_bhts.shape[1])
    return torch.einsum("bhts,bshe->bthe", weights_bhts, value_bshe)


def repeat_kv(x_bsge: Tensor, heads: int) -> Tensor:
    """Repeats each head of keys or values for the query heads that share it."""
    return x_bsge.repeat_interleave(heads // x_bsge.shape[2], dim=2)


class MultiHeadAttention(nn.Module):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`,
    `output = sum_i head_i W_i^O + b^O`.

    The projections are linear layers with outputs `(h k)`, `(g k)` and `(g e)`: the heads of one
    position lie side by side. The number of heads follows from the outputs, so that tensor
    parallelism may give each process some of them.

    By config queries and keys are normalised (QKNORM), then rotated (ROTARY). layer: the index of
    the layer whose self-attention it is; None, cross-attention, neither rotates nor has a window.
    rotation: of the tokens' positions, which a model computes once for all layers; without it,
    token t has position t.
    """

    def __init__(self, config: TransformerConfig, layer: int | None = 0) -> None:
        super().__init__()
        self.config, self.kind = config, None if layer is None else config.layer_kind(layer)
        width, bias = config.model_width, config.query_key_value_bias
        self.width, self.key_size, self.value_size = width, config.key_size, config.value_size
        self.query = linear(width, config.heads * config.key_size, bias)
        self.key = linear(width, config.key_value_heads * config.key_size, bias)
        self.value = linear(width, config.key_value_heads * config.value_size, bias)
        if config.query_key_norm != "none":
            of_width = config.query_key_norm == "width"
            heads, groups = (config.heads, config.key_value_heads) if of_width else (1, 1)
            self.query_norm = norm(config, heads * config.key_size)
            self.key_norm = norm(config, groups * config.key_size)
        self.output = linear(config.heads * config.value_size, width, config.attention_output_bias)
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
        rotation: Rotation | None = None,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.width)
        checks.check_features("memory", memory_bsd.shape, self.width)
        query_bthk, key_bsgk, value_bsge = self.unrotated(query_btd, memory_bsd)
        if self.kind is not None and self.kind.rotary:
            checks.check_same_length(query_btd.shape, memory_bsd.shape)
            if rotation is None:
                position_bt = torch.arange(query_btd.shape[1], device=query_btd.device)[None]
                rotation = rotary.rotation(self.config, self.kind, position_bt, query_bthk.dtype)
            query_bthk, key_bsgk = self.rotated(query_bthk, key_bsgk, rotation)
        return self.attend(
            query_bthk,
            key_bsgk,
            value_bsge,
            mask_bhts,
            bias_bhts,
            causal,
            return_weights,
            keep_bhts,
            0 if self.kind is None else self.kind.window,
        )

    def queries(self, query_btd: Tensor) -> Tensor:
        """`x W^Q + b^Q`, normalised by config: `b t h k`."""
        query_bthk = self.query(query_btd).unflatten(-1, (-1, self.key_size))
        return self.normalised("query_norm", query_bthk)

    def keys_and_values(self, memory_bsd: Tensor) -> tuple[Tensor, Tensor]:
        """`m W^K + b^K`, normalised by config, and `m W^V + b^V`, which no query changes: key
        `b s g k` and value `b s g e`.
        """
        key, value = self.key(memory_bsd), self.value(memory_bsd)
        key_bsgk = key.unflatten(-1, (-1, self.key_size))
        value_bsge = value.unflatten(-1, (-1, self.value_size))
        return self.normalised("key_norm", key_bsgk), value_bsge

    def unrotated(self, query_btd: Tensor, memory_bsd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects one input to queries, and another or the same to keys and values."""
        return self.queries(query_btd), *self.keys_and_values(memory_bsd)

    def project(
        self, x_btd: Tensor, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Projects one input to the queries, keys and values of self-attention, rotated if there is
        a rotation.
        """
        query_bthk, key_btgk, value_btge = self.unrotated(x_btd, x_btd)
        if rotation is not None:
            query_bthk, key_btgk = self.rotated(query_bthk, key_btgk, rotation)
        return query_bthk, key_btgk, value_btge

    def normalised(self, name: str, x_bthk: Tensor) -> Tensor:
        """Applies the norm of that name over each head, or over all of them together."""
        if self.config.query_key_norm == "none":
            return x_bthk
        axis = 1 if self.config.query_key_norm == "head" else 2
        rows_btd = getattr(self, name)(x_bthk.flatten(axis, axis + 1))
        return rows_btd.unflatten(axis, (-1, x_bthk.shape[axis + 1]))

    def rotated(
        self, query_bthk: Tensor, key_bsgk: Tensor, rotation: Rotation
    ) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys."""
        given = rotation, self.config.rotary_layout
        return rotary.rotated(query_bthk, *given), rotary.rotated(key_bsgk, *given)

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
        window: int = 0,
    ) -> Output:
        """Attends with these queries to these keys and values, then projects the output."""
        # In a run without padding the input is flat: only the attention itself sees rows.
        output_bthe, weights_bhts = in_rows(
            self._attend,
            query_bthk,
            key_bsgk,
            value_bsge,
            mask_bhts,
            bias_bhts,
            causal,
            return_weights,
            keep_bhts,
            window,
        )
        output_btd = self.output(output_bthe.flatten(-2))
        return output_btd if weights_bhts is None else (output_btd, weights_bhts)

    def _attend(
        self,
        query_bthk: Tensor,
        key_bsgk: Tensor,
        value_bsge: Tensor,
        mask_bhts: Tensor | None,
        bias_bhts: Tensor | None,
        causal: bool,
        return_weights: bool,
        keep_bhts: Tensor | None,
        window: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention `b t h e`, and its weights if they are to be returned."""
        drop, scale, cap = self.weights_dropout, self.config.score_scale, self.config.score_cap
        if type(drop).forward is Dropout.forward and not is_changed(drop):
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
                window,
                scale,
                cap,
            )
            return attended if isinstance(attended, tuple) else (attended, None)
        # Another module, or one with hooks, is given the weights, which the fused kernel never
        # holds.
        seen_bhts = _weights(query_bthk, key_bsgk, mask_bhts, bias_bhts, causal, window, scale, cap)
        left_bhts = drop(seen_bhts) if keep_bhts is None else drop(seen_bhts, keep_bhts)
        return _weighted(left_bhts, value_bsge), seen_bhts if return_weights else None
