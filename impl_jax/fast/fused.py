"""A model as the steps of decoding run it: a copy of its weights, with the projections of one input in one kernel."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from ..attention import MultiHeadAttention
from ..framework import has_explicit_axes
from ..transformer import Transformer
from .int8 import Int8Projection
from .projection import SMALL, FusedProjection

__all__ = ["FusedAttention", "fused"]

Kind = type[FusedProjection]


class FusedAttention(MultiHeadAttention):
    """Multi-head attention whose query, key and value are one product (self-attention), or key and value (cross-attention)."""

    query: Any
    output: Any

    def __init__(self, attention: MultiHeadAttention, of_itself: bool, kind: Kind = FusedProjection) -> None:
        if of_itself:
            self.query_key_value = kind(attention.query, attention.key, attention.value)
        else:
            self.query, self.key_value = kind(attention.query), kind(attention.key, attention.value)
        self.output, self.weights_dropout, self.width = kind(attention.output, inputs=2), attention.weights_dropout, attention.width

    def queries(self, query_btd: jax.Array) -> jax.Array:
        return self.query.separate(query_btd)[0]

    def keys_and_values(self, memory_bsd: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_bsgk, value_bsge = self.key_value.separate(memory_bsd)
        return key_bsgk, value_bsge

    def project(self, x_btd: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        query_bthk, key_btgk, value_btge = self.query_key_value.separate(x_btd)
        return query_bthk, key_btgk, value_btge


def fused(model: Transformer, dtype: Dtype | None = None) -> Transformer:
    """A copy of the model in evaluation mode, for steps and searches; a copy that this has made already is returned as it is.

    dtype: every weight is rounded to it and the copy computes in it; by default both are the model's own. int8: that of the projections,
    all else is float32 (INT8).
    Raises ValueError where there is no decoder, on a mesh of explicit axes, and on a dtype for such a copy.
    """
    model.config.need_decoder()
    if isinstance(model.decoder.layers[0].self_attention, FusedAttention):
        if dtype is not None:
            raise ValueError(
                f"dtype must be given with the model itself; got {jnp.dtype(dtype)} and a copy by `fused`, whose weights are rounded"
            )
        return model
    kind: Kind = FusedProjection
    if dtype is not None and jnp.dtype(dtype) == jnp.int8:
        kind, dtype = Int8Projection, jnp.float32
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype must be a floating one or int8; got {jnp.dtype(dtype)}")
    if has_explicit_axes(model.table[...]):
        raise ValueError("decoding needs Auto axes, jax.make_mesh(..., axis_types=(AxisType.Auto,) * n); got a mesh of explicit ones")
    copy: Any = nnx.clone(model)
    copy.eval()
    if dtype is not None:
        nnx.update(copy, jax.tree.map(lambda x: x.astype(dtype), nnx.state(copy, nnx.Param)))
        copy.set_attributes(dtype=dtype)
    for layer in copy.encoder.layers if kind is Int8Projection and model.config.encoder_layers else ():
        layer.self_attention = FusedAttention(layer.self_attention, of_itself=False, kind=kind)
        _fuse(layer.feed_forward, kind)
    for layer in copy.decoder.layers:
        layer.self_attention = FusedAttention(layer.self_attention, of_itself=True, kind=kind)
        if model.config.cross_attention:
            layer.cross_attention = FusedAttention(layer.cross_attention, of_itself=False, kind=kind)
        _fuse(layer.feed_forward, kind)
    table_vd = copy.table[...]
    if model.config.tie_logits and (table_vd.nbytes <= SMALL or kind is Int8Projection):
        copy.logits.kernel = nnx.Param(table_vd.T)
    if hasattr(copy.logits, "kernel"):
        copy.logits = kind(copy.logits)
    return copy


def _fuse(feed_forward: Any, kind: Kind) -> None:
    feed_forward.hidden, feed_forward.output = kind(feed_forward.hidden), kind(feed_forward.output)
