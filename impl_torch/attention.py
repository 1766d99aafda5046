"""Scaled dot-product attention and multi-head attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from . import mask, precision, rotary, softmax
from .dropout import Dropout, dropout
from .framework import is_changed
from .kernels.attention import sdpa
from .kernels.unpadding import in_rows
from .normalization import norm
from .projection import linear
from .rotary import Rotation
from .values import Drop, Heads

__all__ = ["MultiHeadAttention", "attention_weights", "scaled_dot_product_attention"]


def attention_weights(
    query_bthk: Tensor,
    key_bsgk: Tensor,
    mask_bhts: Tensor | None = None,
    scores: Scores = Scores(),
    sink_h: Tensor | None = None,
) -> Tensor:
    """`softmax(query key^T / sqrt(k))`: how much each query attends to each key, `b h t s`.

    mask_bhts: boolean, True = may attend (MASK), or floating, added to the scores, where -inf hides
    a key. sink_h: see `beside_sink`. Fully masked queries have zero weights (EMPTY). Half-precision
    dtypes compute in float32 and round the weights. Raises ValueError if the shapes do not match.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, key_bsgk.shape)
    scores_bhts = scaled_scores(query_bthk, key_bsgk, scores)
    if scores.cap is not None:
        scores_bhts = softmax.soft_cap(scores_bhts, scores.cap)
    scores_bhts, mask_bhts = masked(scores_bhts, mask_bhts, scores)
    weights_bhts = softmax.softmax(*beside_sink(scores_bhts, mask_bhts, sink_h))
    return weights_bhts[..., : scores_bhts.shape[3]].to(query_bthk.dtype)


def scaled_dot_product_attention(
    heads: Heads, mask_bhts: Tensor | None = None, scores: Scores = Scores(), drop: Drop = Drop()
) -> Tensor:
    """`attention_weights(query, key) value`: the weighted mean of the values, `b t h e`.

    Without a cap and a keep mask, torch's fused kernel computes it without storing the weights.
    Raises ValueError if the shapes do not match.
    """
    query_bthk, key_bsgk, value_bsge, sink_h = heads
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    if scores.cap is None and drop.keep_bhts is None:
        return sdpa(heads, mask_bhts, scores, drop.rate)
    weights_bhts = attention_weights(query_bthk, key_bsgk, mask_bhts, scores, sink_h)
    dropped_bhts = dropout(weights_bhts, drop.keep_bhts, drop.rate, training=drop.rate > 0)
    value_bshe = repeat_kv(value_bsge, query_bthk.shape[2])
    return torch.einsum("bhts,bshe->bthe", dropped_bhts, value_bshe)


def scaled_scores(query_bthk: Tensor, key_bsgk: Tensor, scores: Scores = Scores()) -> Tensor:
    """`query key^T / sqrt(k)`, or times `score_scale` (SCALE): `b h t s`, at least float32."""
    scale = query_bthk.shape[3] ** -0.5 if scores.scale is None else scores.scale
    scaled_bthk = precision.upcast_half(query_bthk) * scale
    key_bshk = precision.upcast_half(repeat_kv(key_bsgk, query_bthk.shape[2]))
    return torch.einsum("bthk,bshk->bhts", scaled_bthk, key_bshk)


def masked(
    scores_bhts: Tensor, mask_bhts: Tensor | None, scores: Scores = Scores()
) -> tuple[Tensor, Tensor | None]:
    """Adds a floating mask to the scores; merges CAUSAL and WINDOW into a boolean mask."""
    target, source = scores_bhts.shape[2:]
    if mask_bhts is not None:
        kind = precision.dtype_name(mask_bhts.dtype)
        checks.check_attention_mask(mask_bhts.shape, kind, scores_bhts.shape)
        if mask_bhts.is_floating_point():
            scores_bhts, mask_bhts = scores_bhts + mask_bhts, mask_bhts > -torch.inf
    if scores.causal:
        causal_bhts = mask.causal_mask(target, source, scores_bhts.device)
        mask_bhts = mask.combine_masks(mask_bhts, causal_bhts)
    if scores.window:
        window_bhts = mask.window_mask(target, source, scores.window, scores_bhts.device)
        mask_bhts = mask.combine_masks(mask_bhts, window_bhts)
    return scores_bhts, mask_bhts


def beside_sink(
    scores_bhts: Tensor, mask_bhts: Tensor | None, sink_h: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """`[scores, sink]`, `b h t s+1`: appends the score of each head's sink, which is never masked
    (SINK).
    """
    if sink_h is None:
        return scores_bhts, mask_bhts
    checks.check_sink(sink_h.shape, scores_bhts.shape[1])
    sink_bht1 = sink_h.to(scores_bhts.dtype)[:, None, None].expand(*scores_bhts.shape[:3], 1)
    if mask_bhts is not None:
        mask_bhts = F.pad(mask_bhts.expand(scores_bhts.shape), (0, 1), value=True)
    return torch.cat([scores_bhts, sink_bht1], dim=-1), mask_bhts


def repeat_kv(x_bsge: Tensor, heads: int) -> Tensor:
    """Repeats each key or value head for the query heads that share it."""
    return x_bsge.repeat_interleave(heads // x_bsge.shape[2], dim=2)


def clipped(x_bthk: Tensor, limit: float | None) -> Tensor:
    """`min(max(x, -limit), limit)` for queries, keys and values; None clips nothing (CLIP)."""
    return x_bthk if limit is None else x_bthk.clamp(-limit, limit)


class MultiHeadAttention(nn.Module):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`,
    `output = sum_i head_i W_i^O + b^O`: `b t d`.

    The projections are linear layers with outputs `(h k)`, `(g k)` and `(g e)`. The number of heads
    follows from their width, so that tensor parallelism can give each process some of the heads.
    Queries and keys are normalized if the config sets query_key_norm (QKNORM). scores: by default
    as in the first encoder layer; they decide whether each head has a sink (SINK). rotation: for
    queries and keys (ROTARY); None for no rotation. keep_bhts: dropout mask of the weights.
    """

    def __init__(self, config: TransformerConfig, scores: Scores | None = None) -> None:
        super().__init__()
        self.config, self.scores = config, config.scores(0) if scores is None else scores
        width, bias = config.model_width, config.query_key_value_bias
        self.width, self.key_size, self.value_size = width, config.key_size, config.value_size
        self.query = linear(width, config.heads * config.key_size, bias)
        self.key = linear(width, config.key_value_heads * config.key_size, bias)
        self.value = linear(width, config.key_value_heads * config.value_size, bias)
        self.query_norm: nn.Module | None = None
        self.key_norm: nn.Module | None = None
        if config.query_key_norm != "none":
            shared = config.query_key_norm == "head"
            heads, groups = (1, 1) if shared else (config.heads, config.key_value_heads)
            self.query_norm = norm(config.of_query_key_norm, heads * config.key_size)
            self.key_norm = norm(config.of_query_key_norm, groups * config.key_size)
            if config.query_key_norm == "each_head":
                self.query_norm.head_size = self.key_norm.head_size = config.key_size
        self.output = linear(config.heads * config.value_size, width, config.attention_output_bias)
        self.weights_dropout = Dropout(config.attention_dropout_rate)
        self.sink = nn.Parameter(torch.zeros(config.heads)) if self.scores.sink else None

    def forward(
        self,
        query_btd: Tensor,
        memory_bsd: Tensor,
        mask_bhts: Tensor | None = None,
        rotation: Rotation | None = None,
        keep_bhts: Tensor | None = None,
    ) -> Tensor:
        checks.check_features("query", query_btd.shape, self.width)
        checks.check_features("memory", memory_bsd.shape, self.width)
        if rotation is not None:
            checks.check_same_length(query_btd.shape, memory_bsd.shape)
        return self.attend(self.project(query_btd, memory_bsd, rotation), mask_bhts, keep_bhts)

    def project(
        self, query_btd: Tensor, memory_bsd: Tensor, rotation: Rotation | None = None
    ) -> Heads:
        """Projects x to queries, and m to keys and values; normalizes, rotates queries and keys.

        Raises ValueError if there is a rotation and the two lengths differ.
        """
        query_bthk = self.queries(query_btd, rotation)
        key_bsgk, value_bsge = self.keys_and_values(memory_bsd, rotation)
        return Heads(query_bthk, key_bsgk, value_bsge, self.sink)

    def queries(self, query_btd: Tensor, rotation: Rotation | None = None) -> Tensor:
        """`x W^Q + b^Q`, normalized and rotated: `b t h k`."""
        return self.query_key_norm(self.query(query_btd), self.query_norm, rotation)

    def keys_and_values(
        self, memory_bsd: Tensor, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor]:
        """`m W^K + b^K`, normalized and rotated, and `m W^V + b^V`: `b s g k` and `b s g e`."""
        key_bsgk = self.query_key_norm(self.key(memory_bsd), self.key_norm, rotation)
        value_bsge = self.value(memory_bsd).unflatten(-1, (-1, self.value_size))
        return key_bsgk, clipped(value_bsge, self.config.query_key_value_clip)

    def query_key_norm(
        self, x_btd: Tensor, norm: nn.Module | None, rotation: Rotation | None = None
    ) -> Tensor:
        """Normalizes queries or keys per head or over all heads (QKNORM), clips (CLIP) and rotates
        (ROTARY).
        """
        layout, after = self.config.rotary_layout, self.config.query_key_norm_after_rotation
        x_bthk, limit = x_btd.unflatten(-1, (-1, self.key_size)), self.config.query_key_value_clip
        x_bthk = rotary.rotated(clipped(x_bthk, limit), rotation, layout) if after else x_bthk
        if norm is not None:
            axis = 1 if self.config.query_key_norm == "head" else 2
            normed_btd = norm(x_bthk.flatten(axis, axis + 1))
            x_bthk = normed_btd.unflatten(axis, (-1, x_bthk.shape[axis + 1]))
        return x_bthk if after else rotary.rotated(clipped(x_bthk, limit), rotation, layout)

    def attend(
        self,
        heads: Heads,
        mask_bhts: Tensor | None = None,
        keep_bhts: Tensor | None = None,
        scores: Scores | None = None,
    ) -> Tensor:
        """`sum_i attention(head_i) W_i^O + b^O`: `b t d`.

        scores: default, the module's; pass others if the mask already includes causality and
        window.
        """
        return self.output(self.mean(heads, mask_bhts, keep_bhts, scores).flatten(-2))

    @in_rows  # unpacks flattened tokens into rows for this step only
    def mean(
        self,
        heads: Heads,
        mask_bhts: Tensor | None = None,
        keep_bhts: Tensor | None = None,
        scores: Scores | None = None,
    ) -> Tensor:
        """`attention(head_i)` for every head, `b t h e`. scores: as in `attend`."""
        scores, drop = self.scores if scores is None else scores, self.weights_dropout
        if type(drop).forward is not Dropout.forward or is_changed(drop):
            # A user's dropout needs the weights, which the fused kernel does not store.
            return self.weights(heads, mask_bhts, keep_bhts, scores)[1]
        rate = drop.rate if drop.training or keep_bhts is not None else 0.0
        return scaled_dot_product_attention(heads, mask_bhts, scores, Drop(keep_bhts, rate))

    def weights(
        self,
        heads: Heads,
        mask_bhts: Tensor | None = None,
        keep_bhts: Tensor | None = None,
        scores: Scores | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns the weights before dropout, `b h t s`, and the weighted mean of the values, `b t
        h e`.
        """
        scores, drop = self.scores if scores is None else scores, self.weights_dropout
        query_bthk, key_bsgk, value_bsge, sink_h = heads
        weights_bhts = attention_weights(query_bthk, key_bsgk, mask_bhts, scores, sink_h)
        dropped_bhts = drop(weights_bhts) if keep_bhts is None else drop(weights_bhts, keep_bhts)
        value_bshe = repeat_kv(value_bsge, weights_bhts.shape[1])
        return weights_bhts, torch.einsum("bhts,bshe->bthe", dropped_bhts, value_bshe)
