"""Scaled dot-product attention and multi-head attention."""

from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from .dropout import Dropout
from .framework import aligned, einsum, has_explicit_axes
from .kernels.attention import chunk_lengths, in_chunks
from .kernels.unpadding import in_rows
from .mask import causal_mask, combine_masks, window_mask
from .normalization import Norm, norm
from .precision import upcast_dtype
from .projection import Projection
from .rotary import Rotation, rotated
from .softmax import soft_cap, softmax
from .values import Drop, Heads, Mask, Own

__all__ = ["MultiHeadAttention", "attention_weights", "scaled_dot_product_attention"]


def attention_weights(
    query_bthk: jax.Array,
    key_bsgk: jax.Array,
    mask_bhts: Mask = None,
    scores: Scores = Scores(),
    sink_h: jax.Array | None = None,
) -> jax.Array:
    """`softmax(query key^T / sqrt(k))`: how much each query attends to each key, `b h t s`.

    mask_bhts: boolean, True = may attend (MASK), or floating, added to the scores, where -inf hides
    a key. sink_h: see `beside_sink`. Fully masked queries have zero weights (EMPTY). Half-precision
    dtypes keep the scores in float32. Raises ValueError if the shapes do not match.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, key_bsgk.shape)
    scores_bhts = scaled_scores(query_bthk, key_bsgk, scores)
    if scores.cap is not None:
        scores_bhts = soft_cap(scores_bhts, scores.cap)
    scores_bhts, mask_bhts = masked(scores_bhts, mask_bhts, scores)
    weights_bhts = softmax(*beside_sink(scores_bhts, mask_bhts, sink_h))
    return weights_bhts[..., : scores_bhts.shape[3]].astype(query_bthk.dtype)


def scaled_dot_product_attention(
    heads: Heads, mask_bhts: Mask = None, scores: Scores = Scores(), drop: Drop = Drop()
) -> jax.Array:
    """`attention_weights(query, key) value`: the weighted mean of the values, `b t h e`.

    `jax.nn.dot_product_attention` does not fit: it returns the mean of the values for fully masked
    queries, aligns causality to the first key, and needs values as wide as keys. Raises ValueError
    if the shapes do not match.
    """
    query_bthk, key_bsgk, value_bsge, sink_h = heads
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    (batch, target, count, _), source = query_bthk.shape, key_bsgk.shape[1]
    if mask_bhts is not None:
        kind, shape = str(mask_bhts.dtype), (batch, count, target, source)
        checks.check_attention_mask(mask_bhts.shape, kind, shape)
    value_bshe = repeat_kv(value_bsge, count)
    if drop.keep_bhts is None and (lengths := chunk_lengths(batch, count, target, source)):
        heads = Heads(query_bthk, key_bsgk, value_bshe, sink_h)
        return in_chunks(attention_weights, heads, mask_bhts, scores, lengths)
    weights_bhts = attention_weights(query_bthk, key_bsgk, mask_bhts, scores, sink_h)
    if drop.keep_bhts is not None:
        weights_bhts = Dropout(drop.rate)(weights_bhts, drop.keep_bhts)
    return einsum("bhts,bshe->bthe", weights_bhts, value_bshe)


def scaled_scores(
    query_bthk: jax.Array, key_bsgk: jax.Array, scores: Scores = Scores()
) -> jax.Array:
    """`query key^T / sqrt(k)`, or times `score_scale` (SCALE): `b h t s`, at least float32."""
    heads, size = query_bthk.shape[2:]
    dtype, key_bshk = upcast_dtype(query_bthk.dtype), repeat_kv(key_bsgk, heads)
    scores_bhts = einsum("bthk,bshk->bhts", query_bthk, key_bshk, preferred_element_type=dtype)
    return scores_bhts * (size**-0.5 if scores.scale is None else scores.scale)


def masked(
    scores_bhts: jax.Array, mask_bhts: Mask, scores: Scores = Scores()
) -> tuple[jax.Array, Mask]:
    """Adds a floating mask to the scores; merges CAUSAL and WINDOW into a boolean mask."""
    if mask_bhts is not None:
        checks.check_attention_mask(mask_bhts.shape, str(mask_bhts.dtype), scores_bhts.shape)
        mask_bhts = aligned(mask_bhts, scores_bhts)
        if mask_bhts.dtype != bool:
            scores_bhts, mask_bhts = scores_bhts + mask_bhts, mask_bhts > -jnp.inf
    target, source = scores_bhts.shape[2:]
    if scores.causal:
        mask_bhts = combine_masks(mask_bhts, causal_mask(target, source))
    if scores.window:
        mask_bhts = combine_masks(mask_bhts, window_mask(target, source, scores.window))
    return scores_bhts, mask_bhts


def beside_sink(
    scores_bhts: jax.Array, mask_bhts: Mask, sink_h: jax.Array | None
) -> tuple[jax.Array, Mask]:
    """`[scores, sink]`, `b h t s+1`: appends the score of each head's sink, which is never masked
    (SINK). Without sinks, returns scores and mask.
    """
    if sink_h is None:
        return scores_bhts, mask_bhts
    checks.check_sink(sink_h.shape, scores_bhts.shape[1])
    sink_h11 = aligned(sink_h.astype(scores_bhts.dtype)[:, None, None], scores_bhts)
    sink_bht1 = jnp.zeros_like(scores_bhts[..., :1]) + sink_h11
    if mask_bhts is not None:
        mask_bhts = jnp.broadcast_to(mask_bhts, (*mask_bhts.shape[:3], scores_bhts.shape[3]))
        mask_bhts = jnp.pad(mask_bhts, [(0, 0)] * 3 + [(0, 1)], constant_values=True)
    return jnp.concatenate([scores_bhts, sink_bht1], axis=-1), mask_bhts


def repeat_kv(x_bsge: jax.Array, heads: int) -> jax.Array:
    """Repeats each key or value head for the query heads that share it."""
    sharding = jax.typeof(x_bsge).sharding if has_explicit_axes(x_bsge) else None
    return jnp.repeat(x_bsge, heads // x_bsge.shape[2], axis=2, out_sharding=sharding)


def clipped(x_bthk: jax.Array, limit: float | None) -> jax.Array:
    """`min(max(x, -limit), limit)` for queries, keys and values; None clips nothing (CLIP).

    `jnp.clip` halves the gradient of a number that equals the limit.
    """
    if limit is None:
        return x_bthk
    return jnp.where(jnp.abs(x_bthk) > limit, jnp.sign(x_bthk) * limit, x_bthk)


class MultiHeadAttention(nnx.Module):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`,
    `output = sum_i head_i W_i^O + b^O`: `b t d`.

    Kernels keep their head axes: `d h k`, `d g k`, `d g e` and `h e d`. Queries and keys are
    normalized if the config sets query_key_norm (QKNORM), then rotated (ROTARY). scores: default,
    those of the first layer.
    """

    def __init__(
        self, config: TransformerConfig, scores: Scores | None = None, **own: Unpack[Own]
    ) -> None:
        sizes, bias = config.sizes, config.query_key_value_bias
        self.query = Projection("btd,dhk->bthk", sizes, bias, **own)
        self.key = Projection("bsd,dgk->bsgk", sizes, bias, **own)
        self.value = Projection("bsd,dge->bsge", sizes, bias, **own)
        self.output = Projection("bthe,hed->btd", sizes, config.attention_output_bias, **own)
        axes = ("k", "k") if config.query_key_norm == "head" else ("hk", "gk")
        query, key = (tuple(sizes[letter] for letter in letters) for letters in axes)
        none = config.query_key_norm == "none"
        self.query_norm = None if none else norm(config.of_query_key_norm, query, **own)
        self.key_norm = None if none else norm(config.of_query_key_norm, key, **own)
        if self.query_norm and self.key_norm and config.query_key_norm == "each_head":
            self.query_norm.axes = self.key_norm.axes = (-1,)
        self.weights_dropout = Dropout(config.attention_dropout_rate, rngs=own["rngs"])
        self.scores = config.scores(0) if scores is None else scores
        zeros_h = jnp.zeros(config.heads, own.get("param_dtype", jnp.float32))
        self.sink = nnx.Param(zeros_h) if self.scores.sink else None
        self.width, self.rotary_layout = config.model_width, config.rotary_layout
        self.norm_after_rotation = config.query_key_norm_after_rotation
        self.clip = config.query_key_value_clip

    def __call__(
        self,
        query_btd: jax.Array,
        memory_bsd: jax.Array,
        mask_bhts: Mask = None,
        rotation: Rotation | None = None,
        keep_bhts: Mask = None,
    ) -> jax.Array:
        """Attends from `query_btd` to `memory_bsd`: `b t d`."""
        checks.check_features("query", query_btd.shape, self.width)
        checks.check_features("memory", memory_bsd.shape, self.width)
        heads = self.project(query_btd, memory_bsd, rotation)
        return self.attend(heads, mask_bhts, keep_bhts)

    def project(
        self, query_btd: jax.Array, memory_bsd: jax.Array, rotation: Rotation | None = None
    ) -> Heads:
        """Projects x to queries, and m to keys and values; normalizes, rotates queries and keys.

        Raises ValueError if there is a rotation and the two lengths differ.
        """
        if rotation is not None:
            checks.check_same_length(query=query_btd.shape, memory=memory_bsd.shape)
        query_bthk = self.queries(query_btd, rotation)
        key_bsgk, value_bsge = self.keys_and_values(memory_bsd, rotation)
        sink_h = None if self.sink is None else self.sink[...]
        return Heads(query_bthk, key_bsgk, value_bsge, sink_h)

    def queries(self, query_btd: jax.Array, rotation: Rotation | None = None) -> jax.Array:
        """`x W^Q + b^Q`, normalized and rotated: `b t h k`."""
        return self.query_key_norm(self.query(query_btd), self.query_norm, rotation)

    def keys_and_values(
        self, memory_bsd: jax.Array, rotation: Rotation | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """`m W^K + b^K`, normalized and rotated, and `m W^V + b^V`: `b s g k` and `b s g e`."""
        key_bsgk = self.query_key_norm(self.key(memory_bsd), self.key_norm, rotation)
        return key_bsgk, clipped(self.value(memory_bsd), self.clip)

    def query_key_norm(
        self, x_bthk: jax.Array, norm: Norm | None, rotation: Rotation | None = None
    ) -> jax.Array:
        """Normalizes queries or keys per head or over all heads (QKNORM), clips (CLIP) and rotates
        (ROTARY).
        """
        if norm is not None and not self.norm_after_rotation:
            x_bthk = norm(x_bthk)
        x_bthk = rotated(clipped(x_bthk, self.clip), rotation, self.rotary_layout)
        return norm(x_bthk) if norm is not None and self.norm_after_rotation else x_bthk

    def attend(self, heads: Heads, mask_bhts: Mask = None, keep_bhts: Mask = None) -> jax.Array:
        """`sum_i attention(head_i) W_i^O + b^O`: `b t d`.

        keep_bhts: dropout mask of the weights; default, drawn at random in training.
        """
        return self.output(self.mean(heads, mask_bhts, keep_bhts))

    @in_rows  # unpacks flattened tokens into rows for this step only
    def mean(self, heads: Heads, mask_bhts: Mask = None, keep_bhts: Mask = None) -> jax.Array:
        """`attention(head_i)` for every head, `b t h e`."""
        if keep_bhts is None:
            (batch, target, count, _), source = heads.query_bthk.shape, heads.key_bsgk.shape[1]
            keep_bhts = self.weights_dropout.draw((batch, count, target, source))
        drop = Drop(keep_bhts, self.weights_dropout.rate)
        return scaled_dot_product_attention(heads, mask_bhts, self.scores, drop)

    def weights(self, heads: Heads, mask_bhts: Mask = None) -> jax.Array:
        """Returns the attention weights before dropout, `b h t s`."""
        query_bthk, key_bsgk, _, sink_h = heads
        return attention_weights(query_bthk, key_bsgk, mask_bhts, self.scores, sink_h)
