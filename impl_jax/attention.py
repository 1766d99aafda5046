"""Scaled dot-product attention and multi-head attention."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from .dropout import Dropout
from .framework import beside, einsum, has_explicit_axes
from .kernels.attention import chunk_lengths, in_chunks
from .kernels.unpadding import in_rows
from .mask import causal_mask, combine_masks, window_mask
from .normalization import Norm, norm
from .precision import upcast_dtype
from .projection import Projection
from .rotary import Rotation, rotated
from .softmax import soft_cap, softmax
from .values import Drop, Heads

__all__ = ["MultiHeadAttention", "attention_weights", "scaled_dot_product_attention"]


def attention_weights(
    query_bthk: jax.Array,
    key_bsgk: jax.Array,
    mask_bhts: jax.Array | None = None,
    scores: Scores = Scores(),
) -> jax.Array:
    """`softmax(query key^T / sqrt(k))`, `b h t s`: how much each query attends to each key.

    mask_bhts: boolean, True = may attend (MASK), or floating, added to the scores, where -inf hides
    a key. scores: their scale, cap, window and causality. A query that may attend to nothing has
    weights of zero (EMPTY). Half-precision dtypes hold the scores in float32. Raises ValueError on
    shapes that do not fit.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, key_bsgk.shape)
    (_, target, heads, size), source = query_bthk.shape, key_bsgk.shape[1]
    dtype, key_bshk = upcast_dtype(query_bthk.dtype), repeat_kv(key_bsgk, heads)
    scores_bhts = einsum("bthk,bshk->bhts", query_bthk, key_bshk, preferred_element_type=dtype)
    scores_bhts = scores_bhts * (size**-0.5 if scores.scale is None else scores.scale)
    if scores.cap is not None:
        scores_bhts = soft_cap(scores_bhts, scores.cap)
    if mask_bhts is not None:
        kind = str(mask_bhts.dtype)
        checks.check_attention_mask(mask_bhts.shape, kind, scores_bhts.shape)
        mask_bhts = beside(mask_bhts, scores_bhts)
        if mask_bhts.dtype != bool:
            scores_bhts, mask_bhts = scores_bhts + mask_bhts, mask_bhts > -jnp.inf
    if scores.causal:
        mask_bhts = combine_masks(mask_bhts, causal_mask(target, source))
    if scores.window:
        mask_bhts = combine_masks(mask_bhts, window_mask(target, source, scores.window))
    return softmax(scores_bhts, mask_bhts).astype(query_bthk.dtype)


def scaled_dot_product_attention(
    heads: Heads,
    mask_bhts: jax.Array | None = None,
    scores: Scores = Scores(),
    drop: Drop = Drop(),
) -> jax.Array:
    """`dropout(attention_weights(query, key)) value`, `b t h e`.

    Arguments and errors as `attention_weights`. drop: without a keep mask no weight is dropped.

    `jax.nn.dot_product_attention` is no substitute: it gives the mean of the values if a query may
    attend to nothing, aligns causality to the first key, and needs values as wide as keys.
    """
    checks.check_attention(*(x.shape for x in heads))
    (batch, target, count, _), source = heads.query_bthk.shape, heads.key_bsgk.shape[1]
    if mask_bhts is not None:
        kind, shape = str(mask_bhts.dtype), (batch, count, target, source)
        checks.check_attention_mask(mask_bhts.shape, kind, shape)
    if drop.keep_bhts is None and (lengths := chunk_lengths(batch, count, target, source)):
        return in_chunks(attended, heads, mask_bhts, scores, lengths)
    return attended(heads, mask_bhts, scores, drop)


def attended(
    heads: Heads, mask_bhts: jax.Array | None, scores: Scores, drop: Drop = Drop()
) -> jax.Array:
    """`scaled_dot_product_attention`, whose weights are computed all together."""
    query_bthk, key_bsgk, value_bsge = heads
    weights_bhts = attention_weights(query_bthk, key_bsgk, mask_bhts, scores)
    if drop.keep_bhts is not None:
        weights_bhts = Dropout(drop.rate)(weights_bhts, drop.keep_bhts)
    return einsum("bhts,bshe->bthe", weights_bhts, repeat_kv(value_bsge, query_bthk.shape[2]))


def repeat_kv(x_bsge: jax.Array, heads: int) -> jax.Array:
    """Keys or values, each head once for every query head that shares it; the gradient is a sum."""
    sharding = jax.typeof(x_bsge).sharding if has_explicit_axes(x_bsge) else None
    return jnp.repeat(x_bsge, heads // x_bsge.shape[2], axis=2, out_sharding=sharding)


class MultiHeadAttention(nnx.Module):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`,
    `output = sum_i head_i W_i^O + b^O`.

    The kernels keep their head axes: `d h k`, `d g k`, `d g e` and `h e d`. By config queries and
    keys are normed (QKNORM), then rotated if the call has a rotation (ROTARY). scores: what it does
    with its scores, by default as the self-attention of the first layer.
    """

    def __init__(
        self, config: TransformerConfig, scores: Scores | None = None, *,
        dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        own: Any = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        affine = config.sizes, config.query_key_value_bias
        self.query = Projection("btd,dhk->bthk", *affine, **own)
        self.key = Projection("bsd,dgk->bsgk", *affine, **own)
        self.value = Projection("bsd,dge->bsge", *affine, **own)
        affine = config.sizes, config.attention_output_bias
        self.output = Projection("bthe,hed->btd", *affine, **own)
        self.query_norm = query_key_norm(config, "h", param_dtype=param_dtype)
        self.key_norm = query_key_norm(config, "g", param_dtype=param_dtype)
        self.weights_dropout = Dropout(config.attention_dropout_rate, rngs=rngs)
        self.scores = config.scores(0) if scores is None else scores
        self.width, self.rotary_layout = config.model_width, config.rotary_layout

    def __call__(
        self,
        query_btd: jax.Array,
        memory_bsd: jax.Array,
        mask_bhts: jax.Array | None = None,
        rotation: Rotation | None = None,
        keep_bhts: jax.Array | None = None,
    ) -> jax.Array:
        """Queries of one input attend to keys and values of another or the same, `b t d`."""
        checks.check_features("query", query_btd.shape, self.width)
        checks.check_features("memory", memory_bsd.shape, self.width)
        heads = self.project(query_btd, memory_bsd, rotation)
        return self.attend(heads, mask_bhts, keep_bhts)

    def project(
        self, query_btd: jax.Array, memory_bsd: jax.Array, rotation: Rotation | None = None
    ) -> Heads:
        """Queries, keys and values. rotation: of both inputs, which are then equally long."""
        if rotation is not None:
            checks.check_same_length(query=query_btd.shape, memory=memory_bsd.shape)
        return Heads(self.queries(query_btd, rotation), *self.keys_and_values(memory_bsd, rotation))

    def queries(self, query_btd: jax.Array, rotation: Rotation | None = None) -> jax.Array:
        """`rotate(norm(x W^Q + b^Q))`, `b t h k`."""
        return self.norm_and_rotate(self.query_norm, self.query(query_btd), rotation)

    def keys_and_values(
        self, memory_bsd: jax.Array, rotation: Rotation | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """`rotate(norm(m W^K + b^K))`, `b s g k`, and `m W^V + b^V`, `b s g e`: what a cache holds,
        since no query changes them.
        """
        key_bsgk = self.norm_and_rotate(self.key_norm, self.key(memory_bsd), rotation)
        return key_bsgk, self.value(memory_bsd)

    def norm_and_rotate(
        self, norm: Norm | None, x_bthk: jax.Array, rotation: Rotation | None
    ) -> jax.Array:
        """Queries or keys, normed if they have a norm, and rotated if there is a rotation."""
        x_bthk = x_bthk if norm is None else norm(x_bthk)
        return x_bthk if rotation is None else rotated(x_bthk, rotation, self.rotary_layout)

    def attend(
        self,
        heads: Heads,
        mask_bhts: jax.Array | None = None,
        keep_bhts: jax.Array | None = None,
    ) -> jax.Array:
        """`sum_i attention(query_i, key_i, value_i) W_i^O + b^O`, `b t d`."""

        def attention(heads: Heads, mask_bhts: jax.Array | None) -> jax.Array:
            drop = self.drop(heads, keep_bhts)
            return scaled_dot_product_attention(heads, mask_bhts, self.scores, drop)

        # In a run without padding the heads lie flat: only the attention itself sees rows.
        return self.output(in_rows(attention, heads, mask_bhts))

    def drop(self, heads: Heads, keep_bhts: jax.Array | None = None) -> Drop:
        """The dropout of the weights: by the keep mask, without one by a random one in training."""
        if keep_bhts is None:
            (batch, target, count, _), source = heads.query_bthk.shape, heads.key_bsgk.shape[1]
            keep_bhts = self.weights_dropout.draw((batch, count, target, source))
        return Drop(keep_bhts, self.weights_dropout.rate)

    def weights(self, heads: Heads, mask_bhts: jax.Array | None = None) -> jax.Array:
        """The weights by which `attend` adds up the values, before dropout: `b h t s`."""
        return attention_weights(heads.query_bthk, heads.key_bsgk, mask_bhts, self.scores)


def query_key_norm(config: TransformerConfig, heads: str, param_dtype: Dtype) -> Norm | None:
    """The norm of queries (heads: "h") or keys ("g"), over a head or over all; None by config."""
    sizes, axes = config.sizes, {"none": "", "head": "k", "width": f"{heads}k"}
    shape = tuple(sizes[letter] for letter in axes[config.query_key_norm])
    return norm(config, shape, param_dtype=param_dtype) if shape else None
