"""Scaled dot-product attention and multi-head attention."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .dropout import Dropout
from .framework import beside, einsum, has_explicit_axes
from .kernels.attention import in_chunks
from .kernels.unpadding import in_rows
from .mask import causal_mask, combine_masks, window_mask
from .normalization import Norm, norm
from .precision import upcast_dtype
from .projection import Projection
from .rotary import Rotation, rotated, rotations
from .softmax import soft_cap, softmax

__all__ = ["MultiHeadAttention", "scaled_dot_product_attention"]

Output = jax.Array | tuple[jax.Array, jax.Array]


def scaled_dot_product_attention(
    query_bthk: jax.Array,
    key_bsgk: jax.Array,
    value_bsge: jax.Array,
    mask_bhts: jax.Array | None = None,
    bias_bhts: jax.Array | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: jax.Array | None = None,
    dropout_rate: float = 0.0,
    window: int = 0,
    scale: float | None = None,
    cap: float | None = None,
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`.

    window: hides keys as far away as that (WINDOW); 0: none. scale: in place of `1 / sqrt(k)`
    (SCALE). cap: `soft_cap` of the scaled logits, before bias and mask (SOFTCAP).

    `jax.nn.dot_product_attention` is no substitute: it gives the mean of the values if a query may
    attend to nothing, aligns causality to the first key, and needs values as wide as keys.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, _ = query_bthk.shape
    scores = (batch, heads, target, key_bsgk.shape[1])
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), scores)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), scores)
    given = query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, window, scale, cap
    if not return_weights and keep_bhts is None:
        return in_chunks(_attention, *given)
    output_bthe, weights_bhts = _attention(*given, keep_bhts, dropout_rate)
    return (output_bthe, weights_bhts) if return_weights else output_bthe


def _attention(
    query_bthk: jax.Array,
    key_bsgk: jax.Array,
    value_bsge: jax.Array,
    mask_bhts: jax.Array | None = None,
    bias_bhts: jax.Array | None = None,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    cap: float | None = None,
    keep_bhts: jax.Array | None = None,
    dropout_rate: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Output and weights, which XLA leaves out of a program that does not use them."""
    _, target, heads, head_size = query_bthk.shape
    key_bshk, value_bshe = repeat_kv(key_bsgk, heads), repeat_kv(value_bsge, heads)
    dtype = upcast_dtype(query_bthk.dtype)
    scale = head_size**-0.5 if scale is None else scale
    logits_bhts = (
        einsum("bthk,bshk->bhts", query_bthk, key_bshk, preferred_element_type=dtype) * scale
    )
    if cap is not None:
        logits_bhts = soft_cap(logits_bhts, cap)
    if mask_bhts is not None:
        mask_bhts = beside(mask_bhts, logits_bhts)
    if bias_bhts is not None:
        logits_bhts += beside(bias_bhts, logits_bhts)
        mask_bhts = combine_masks(mask_bhts, bias_bhts > -jnp.inf)
    if causal:
        mask_bhts = combine_masks(mask_bhts, causal_mask(target, key_bsgk.shape[1]))
    if window:
        mask_bhts = combine_masks(mask_bhts, window_mask(target, key_bsgk.shape[1], window))
    weights_bhts = softmax(logits_bhts, mask_bhts).astype(query_bthk.dtype)
    dropped_bhts = (
        weights_bhts if keep_bhts is None else Dropout(dropout_rate)(weights_bhts, keep_bhts)
    )
    output_bthe = einsum("bhts,bshe->bthe", dropped_bhts, value_bshe)
    return output_bthe, weights_bhts


def repeat_kv(x_bsge: jax.Array, heads: int) -> jax.Array:
    """Keys or values, each head once for every query head that shares it; the gradient is a sum."""
    sharding = jax.typeof(x_bsge).sharding if has_explicit_axes(x_bsge) else None
    return jnp.repeat(x_bsge, heads // x_bsge.shape[2], axis=2, out_sharding=sharding)


class MultiHeadAttention(nnx.Module):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`,
    `output = sum_i head_i W_i^O + b^O`.

    The kernels keep their head axes: `d h k`, `d g k`, `d g e` and `h e d`. By config queries and
    keys are normed (QKNORM), then rotated (ROTARY). layer: the index of the layer whose
    self-attention this is; None, cross-attention, neither rotates nor has a window.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer: int | None = 0,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        sizes, bias = config.sizes, config.query_key_value_bias
        self.query = Projection(
            "btd,dhk->bthk", sizes, bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        self.key = Projection(
            "bsd,dgk->bsgk", sizes, bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        self.value = Projection(
            "bsd,dge->bsge", sizes, bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        bias = config.attention_output_bias
        self.output = Projection(
            "bthe,hed->btd", sizes, bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        self.query_norm = query_key_norm(config, "h", param_dtype=param_dtype)
        self.key_norm = query_key_norm(config, "g", param_dtype=param_dtype)
        self.weights_dropout = Dropout(config.attention_dropout_rate, rngs=rngs)
        kind = None if layer is None else config.layer_kind(layer)
        self.window, self.rotary = (kind.window, kind.rotary) if kind else (0, False)
        self.config, self.layer, self.width = config, layer, config.model_width

    def __call__(
        self,
        query_btd: jax.Array,
        memory_bsd: jax.Array,
        mask_bhts: jax.Array | None = None,
        bias_bhts: jax.Array | None = None,
        causal: bool = False,
        return_weights: bool = False,
        keep_bhts: jax.Array | None = None,
        rotation: Rotation | None = None,
    ) -> Output:
        """rotation: of queries and keys; without it, token t of a layer that rotates is at t."""
        checks.check_features("query", query_btd.shape, self.width)
        checks.check_features("memory", memory_bsd.shape, self.width)
        given = self.project(query_btd, memory_bsd)
        return self.attend(
            *given, mask_bhts, bias_bhts, causal, return_weights, keep_bhts, rotation
        )

    def queries(self, query_btd: jax.Array) -> jax.Array:
        """`x W^Q + b^Q`, `b t h k`."""
        return self.query(query_btd)

    def keys_and_values(self, memory_bsd: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`m W^K + b^K`, `b s g k`, and `m W^V + b^V`, `b s g e`: no query changes them."""
        return self.key(memory_bsd), self.value(memory_bsd)

    def project(
        self, query_btd: jax.Array, memory_bsd: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries of one input, keys and values of another or the same."""
        return self.queries(query_btd), *self.keys_and_values(memory_bsd)

    def placed(
        self, query_bthk: jax.Array, key_bsgk: jax.Array, rotation: Rotation | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Queries and keys, normed and rotated by config."""
        query_bthk, key_bsgk = normed(self.query_norm, query_bthk), normed(self.key_norm, key_bsgk)
        if not self.rotary:
            return query_bthk, key_bsgk
        checks.check_same_length(query=query_bthk.shape, memory=key_bsgk.shape)
        turned: Any = rotation or rotations(self.config, [self.layer or 0], query_bthk)[0]
        layout = self.config.rotary_layout
        return rotated(query_bthk, turned, layout), rotated(key_bsgk, turned, layout)

    def attend(
        self,
        query_bthk: jax.Array,
        key_bsgk: jax.Array,
        value_bsge: jax.Array,
        mask_bhts: jax.Array | None = None,
        bias_bhts: jax.Array | None = None,
        causal: bool = False,
        return_weights: bool = False,
        keep_bhts: jax.Array | None = None,
        rotation: Rotation | None = None,
    ) -> Output:
        """`sum_i attention(query_i, key_i, value_i) W_i^O + b^O`, and the weights."""
        rest = mask_bhts, bias_bhts, causal, return_weights, keep_bhts, rotation
        # In a run without padding the input is flat: only the attention itself sees rows.
        output_bthe, weights_bhts = in_rows(self._attend, query_bthk, key_bsgk, value_bsge, *rest)
        output_btd = self.output(output_bthe)
        return (output_btd, weights_bhts) if return_weights else output_btd

    def _attend(
        self,
        query_bthk: jax.Array,
        key_bsgk: jax.Array,
        value_bsge: jax.Array,
        mask_bhts: jax.Array | None,
        bias_bhts: jax.Array | None,
        causal: bool,
        return_weights: bool,
        keep_bhts: jax.Array | None,
        rotation: Rotation | None,
    ) -> tuple[jax.Array, Any]:
        """The attention, with random dropout of its weights; these are None unless asked for."""
        query_bthk, key_bsgk = self.placed(query_bthk, key_bsgk, rotation)
        if keep_bhts is None:
            batch, target, heads, _ = query_bthk.shape
            keep_bhts = self.weights_dropout.draw((batch, heads, target, key_bsgk.shape[1]))
        attended: Any = scaled_dot_product_attention(
            query_bthk,
            key_bsgk,
            value_bsge,
            mask_bhts,
            bias_bhts,
            causal,
            return_weights,
            keep_bhts,
            self.weights_dropout.rate,
            self.window,
            self.config.score_scale,
            self.config.score_cap,
        )
        return attended if return_weights else (attended, None)


def query_key_norm(config: TransformerConfig, heads: str, param_dtype: Dtype) -> Norm | None:
    """The norm of queries (heads: "h") or keys ("g"), over a head or over all; None by config."""
    sizes, axes = config.sizes, {"none": "", "head": "k", "width": f"{heads}k"}
    shape = tuple(sizes[letter] for letter in axes[config.query_key_norm])
    return norm(config, shape, param_dtype=param_dtype) if shape else None


def normed(norm: Norm | None, x_bthk: jax.Array) -> jax.Array:
    """Queries or keys, normed if there is a norm of them."""
    return x_bthk if norm is None else norm(x_bthk)
