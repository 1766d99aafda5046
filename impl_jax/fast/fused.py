"""A model as the steps of decoding run it: a copy of its weights, with the projections of one input in one kernel."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from ..attention import MultiHeadAttention
from ..gather import has_explicit_axes
from ..projection import SMALL, Joined
from ..softmax import softmax
from ..transformer import Transformer

__all__ = ["FusedAttention", "fused"]


class FusedAttention(nnx.Module):
    """Multi-head attention for few queries. Query, key and value are one product in self-attention, key and value in cross-attention.

    Queries, keys and values have the heads before the positions: so they are held, and so each head reads its own without a jump.
    """

    def __init__(self, attention: MultiHeadAttention, of_itself: bool) -> None:
        (_, self.heads, size), (_, self.groups, _) = attention.query.kernel.shape, attention.key.kernel.shape
        self.query_width, self.key_width = self.heads * size, self.groups * size
        if of_itself:
            self.query_key_value = Joined(attention.query, attention.key, attention.value)
        else:
            self.query, self.key_value = Joined(attention.query), Joined(attention.key, attention.value)
        self.output = Joined(attention.output, inputs=2)

    def queries(self, x_btd: jax.Array) -> jax.Array:
        """The queries alone, `b h t k`, for keys and values that are there already."""
        return _by_head(self.query(x_btd), self.heads)

    def keys_and_values(self, memory_bsd: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The part that no query changes: key `b g s k` and value `b g s e`."""
        return self._split_keys_and_values(self.key_value(memory_bsd))

    def queries_keys_and_values(self, x_btd: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """All projections of self-attention."""
        query_btn, key_value_btn = jnp.split(self.query_key_value(x_btd), [self.query_width], axis=-1)
        return _by_head(query_btn, self.heads), *self._split_keys_and_values(key_value_btn)

    def _split_keys_and_values(self, key_value_bsn: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_bsn, value_bsn = jnp.split(key_value_bsn, [self.key_width], axis=-1)
        return _by_head(key_bsn, self.groups), _by_head(value_bsn, self.groups)

    def attend(self, query_bhtk: jax.Array, key_bgsk: jax.Array, value_bgse: jax.Array, mask_bhts: jax.Array | None = None) -> jax.Array:
        """`scaled_dot_product_attention` and the output's projection. Query heads that share a key head are rows of one product."""
        (batch, heads, target, size), (_, groups, source, _) = query_bhtk.shape, key_bgsk.shape
        query_bgrk = query_bhtk.reshape(batch, groups, heads // groups * target, size)
        wide = jnp.promote_types(query_bhtk.dtype, jnp.float32)
        logits_bgrs = jnp.einsum("bgrk,bgsk->bgrs", query_bgrk, key_bgsk, preferred_element_type=wide) * size**-0.5
        weights_bhts = softmax(logits_bgrs.reshape(batch, heads, target, source), mask_bhts).astype(query_bhtk.dtype)
        output_bgre = jnp.einsum("bgrs,bgse->bgre", weights_bhts.reshape(logits_bgrs.shape), value_bgse)
        output_bthe = output_bgre.reshape(batch, heads, target, value_bgse.shape[3]).swapaxes(1, 2)
        return self.output(jax.lax.collapse(output_bthe, 2))


def fused(model: Transformer, dtype: Dtype | None = None) -> Transformer:
    """A copy of the model in evaluation mode, for steps and searches; a copy that this has made already is returned as it is.

    dtype: every weight is rounded to it and the copy computes in it; by default both are the model's own.
    Raises ValueError where there is no decoder, and on a mesh of explicit axes.
    """
    model.config.need_decoder()
    if has_explicit_axes(model.source_embedding.table[...]):
        raise ValueError("decoding needs Auto axes, jax.make_mesh(..., axis_types=(AxisType.Auto,) * n); got a mesh of explicit ones")
    if isinstance(model.decoder.layers[0].self_attention, FusedAttention):
        return model
    copy: Any = nnx.clone(model)
    copy.eval()
    if dtype is not None:
        _round(copy, dtype)
    for layer in copy.decoder.layers:
        layer.self_attention = FusedAttention(layer.self_attention, of_itself=True)
        layer.cross_attention = FusedAttention(layer.cross_attention, of_itself=False)
        layer.feed_forward.hidden = Joined(layer.feed_forward.hidden)
    table_vd = (copy.target_embedding or copy.source_embedding).table[...]
    if model.config.tie_logits and table_vd.nbytes <= SMALL:
        copy.logits.kernel = nnx.Param(table_vd.T)
    if hasattr(copy.logits, "kernel"):
        copy.logits = Joined(copy.logits)
    return copy


def _round(model: Transformer, dtype: Dtype) -> None:
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Param):
            node.set_value(node.get_value().astype(dtype))
        elif isinstance(node, nnx.Module) and hasattr(node, "dtype"):
            node.dtype = dtype


def _by_head(x_btn: jax.Array, heads: int) -> jax.Array:
    return x_btn.reshape(*x_btn.shape[:2], heads, x_btn.shape[2] // heads).swapaxes(1, 2)
