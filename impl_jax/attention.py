"""Scaled dot-product attention and multi-head attention."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .dropout import Dropout
from .mask import causal_mask, combine_masks
from .projection import Projection
from .softmax import softmax

__all__ = ["MultiHeadAttention", "scaled_dot_product_attention"]

AT_ONCE = {"cpu": 1 << 22, "gpu": 1 << 28}  # weights that are computed together: on a CPU as many as its cache holds
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
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`.

    XLA fuses scale, bias, mask and softmax between the two contractions. `jax.nn.dot_product_attention` is no substitute: it gives the
    mean of the values where a query may attend to nothing, aligns causality to the first key, and needs values as wide as keys.
    Where the weights would be many and nobody asks for them, the queries take their turns, so that memory grows with s, not with t s.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, head_size = query_bthk.shape
    scores = (batch, heads, target, key_bsgk.shape[1])
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), scores)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), scores)
    if all(isinstance(size, int) for size in scores) and not return_weights and keep_bhts is None:  # not symbolic ones
        turn = max(1, AT_ONCE.get(jax.default_backend(), AT_ONCE["gpu"]) // max(1, batch * heads * scores[3]))
        if turn < target:
            return _in_turns(turn, query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal)
    key_bshk, value_bshe = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (key_bsgk, value_bsge))
    wide = jnp.promote_types(query_bthk.dtype, jnp.float32)
    logits_bhts = jnp.einsum("bthk,bshk->bhts", query_bthk, key_bshk, preferred_element_type=wide) * head_size**-0.5
    if bias_bhts is not None:
        logits_bhts += bias_bhts
        mask_bhts = combine_masks(mask_bhts, bias_bhts > -jnp.inf)
    if causal:
        mask_bhts = combine_masks(mask_bhts, causal_mask(target, key_bsgk.shape[1]))
    weights_bhts = softmax(logits_bhts, mask_bhts).astype(query_bthk.dtype)
    dropped_bhts = weights_bhts if keep_bhts is None else Dropout(dropout_rate)(weights_bhts, keep_bhts)
    output_bthe = jnp.einsum("bhts,bshe->bthe", dropped_bhts, value_bshe)
    return (output_bthe, weights_bhts) if return_weights else output_bthe


def _in_turns(
    turn: int,
    query_bthk: jax.Array,
    key_bsgk: jax.Array,
    value_bsge: jax.Array,
    mask_bhts: jax.Array | None,
    bias_bhts: jax.Array | None,
    causal: bool,
) -> jax.Array:
    """So many queries at once; the backward pass computes their weights again."""
    target, source = query_bthk.shape[1], key_bsgk.shape[1]

    def rows(x_bhts: jax.Array | None, start: Any, count: int) -> jax.Array | None:
        return x_bhts if x_bhts is None or x_bhts.shape[2] == 1 else jax.lax.dynamic_slice_in_dim(x_bhts, start, count, axis=2)

    @functools.partial(jax.checkpoint, static_argnums=1)
    def attend(start: Any, count: int) -> Any:
        mask_bhcs = rows(mask_bhts, start, count)
        if causal:
            last_c = start + jnp.arange(count) + source - target
            mask_bhcs = combine_masks(mask_bhcs, (jnp.arange(source) <= last_c[:, None])[None, None])
        query_bchk = jax.lax.dynamic_slice_in_dim(query_bthk, start, count, axis=1)
        return scaled_dot_product_attention(query_bchk, key_bsgk, value_bsge, mask_bhcs, rows(bias_bhts, start, count))

    whole = target - target % turn
    output_nbche = jax.lax.map(lambda start: attend(start, turn), jnp.arange(0, whole, turn))
    output_bthe = jax.lax.collapse(jnp.moveaxis(output_nbche, 0, 1), 1, 3)
    return output_bthe if whole == target else jnp.concatenate([output_bthe, attend(whole, target - whole)], axis=1)


class MultiHeadAttention(nnx.Module):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`, `output = sum_i head_i W_i^O + b^O`.

    The kernels have the canonical axes; einsum contracts them without a reshape.
    """

    def __init__(self, config: TransformerConfig, *, dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs) -> None:
        d, h, g, k, e, _ = config.sizes.values()

        def projection(subscripts: str, kernel: tuple[int, ...], bias: tuple[int, ...], inputs: int) -> Projection:
            axes = range(len(kernel))  # the fans of INIT are those of the unfused projection
            return Projection(
                subscripts, kernel, bias if config.attention_bias else None, dtype=dtype, param_dtype=param_dtype,
                kernel_init=nnx.initializers.xavier_uniform(axes[:inputs], axes[inputs:]), rngs=rngs,
            )  # fmt: skip

        self.query = projection("btd,dhk->bthk", (d, h, k), (h, k), inputs=1)
        self.key = projection("bsd,dgk->bsgk", (d, g, k), (g, k), inputs=1)
        self.value = projection("bsd,dge->bsge", (d, g, e), (g, e), inputs=1)
        self.output = projection("bthe,hed->btd", (h, e, d), (d,), inputs=2)
        self.weights_dropout = Dropout(config.attention_dropout_rate, rngs=rngs)
        self.width = d

    def __call__(
        self,
        query_btd: jax.Array,
        memory_bsd: jax.Array,
        mask_bhts: jax.Array | None = None,
        bias_bhts: jax.Array | None = None,
        causal: bool = False,
        return_weights: bool = False,
        keep_bhts: jax.Array | None = None,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.width)
        checks.check_features("memory", memory_bsd.shape, self.width)
        key_bsgk, value_bsge = self.keys_and_values(memory_bsd)
        return self.attend(query_btd, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, return_weights, keep_bhts)

    def keys_and_values(self, memory_bsd: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The part that no query changes."""
        return self.key(memory_bsd), self.value(memory_bsd)

    def attend(
        self,
        query_btd: jax.Array,
        key_bsgk: jax.Array,
        value_bsge: jax.Array,
        mask_bhts: jax.Array | None = None,
        bias_bhts: jax.Array | None = None,
        causal: bool = False,
        return_weights: bool = False,
        keep_bhts: jax.Array | None = None,
    ) -> Output:
        """The rest: the query's projection, the attention to these keys and values, and the output's projection."""
        query_bthk = self.query(query_btd)
        if keep_bhts is None:
            batch, target, heads, _ = query_bthk.shape
            keep_bhts = self.weights_dropout.draw((batch, heads, target, key_bsgk.shape[1]))
        attended: Any = scaled_dot_product_attention(
            query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, return_weights, keep_bhts, self.weights_dropout.rate
        )
        if return_weights:
            output_bthe, weights_bhts = attended
            return self.output(output_bthe), weights_bhts
        return self.output(attended)
