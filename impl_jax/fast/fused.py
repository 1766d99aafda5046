"""A model as the steps of decoding run it: a copy of its weights, with the projections of one input in one kernel.

What stands in for a projection, such as an adapter, is called as it is.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from ..attention import MultiHeadAttention
from ..embedding import Logits
from ..feed_forward import FeedForward
from ..framework import has_explicit_axes
from ..layers import DecoderLayer
from ..projection import Projection
from ..stacks import Decoder
from ..transformer import Transformer
from .int8 import Int8Projection
from .projection import SMALL, FusedProjection

__all__ = ["FusedAttention", "check_steps", "fused"]

LEFT_OUT: dict[type, tuple[str, ...]] = {  # what no step calls
    Transformer: ("__call__", "decode", "embed"),
    Decoder: ("__call__",),
    DecoderLayer: ("__call__",),
    MultiHeadAttention: ("__call__", "attend"),
}
Kind = type[FusedProjection]


class FusedAttention(MultiHeadAttention):
    """Multi-head attention whose query, key and value are one product (self-attention), or key and value (cross-attention)."""

    query: Any
    output: Any

    def __init__(
        self, attention: MultiHeadAttention, of_itself: bool, kind: Kind = FusedProjection
    ) -> None:
        if of_itself:
            self.query_key_value = kind(attention.query, attention.key, attention.value)
        else:
            self.query, self.key_value = kind(attention.query), kind(attention.key, attention.value)
        self.output, self.weights_dropout, self.width = (
            kind(attention.output, inputs=2),
            attention.weights_dropout,
            attention.width,
        )

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
    Raises ValueError where there is no decoder, where a step would leave out what a call does (`check_steps`), on a mesh of explicit
    axes, and on a dtype for such a copy.
    """
    model.config.need_decoder()
    if hasattr(model, "is_fused"):
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
    check_steps(model)
    if has_explicit_axes(model.table[...]):
        raise ValueError(
            "decoding needs Auto axes, jax.make_mesh(..., axis_types=(AxisType.Auto,) * n); got a mesh of explicit ones"
        )
    copy: Any = nnx.clone(model)
    copy.eval()
    if dtype is not None:
        nnx.update(copy, jax.tree.map(lambda x: x.astype(dtype), nnx.state(copy, nnx.Param)))
        copy.set_attributes(dtype=dtype)
    for layer in (
        copy.encoder.layers if kind is Int8Projection and model.config.encoder_layers else ()
    ):
        _fuse_layer(layer, kind, of_itself=False)
    for layer in copy.decoder.layers:
        _fuse_layer(layer, kind, of_itself=True)
    if type(copy.logits) is Logits:
        _fuse_logits(copy, kind)
    copy.is_fused = True
    return copy


def check_steps(model: Transformer) -> None:
    """Raises ValueError where a step would leave out what a module does in a call: it calls what these modules consist of."""
    parts: list[tuple[str, Any, Any]] = [
        ("model", model, Transformer),
        ("decoder", model.decoder, Decoder),
    ]
    for index, layer in enumerate(model.decoder.layers):
        parts.append((f"decoder.layers.{index}", layer, DecoderLayer))
        attentions = ("self_attention", "cross_attention")[: 1 + model.config.cross_attention]
        parts += [
            (f"decoder.layers.{index}.{name}", getattr(layer, name, None), MultiHeadAttention)
            for name in attentions
        ]
    for name, module, kind in parts:
        methods = LEFT_OUT[kind]
        if not isinstance(module, kind) or any(
            getattr(type(module), method) is not getattr(kind, method) for method in methods
        ):
            needed = f"a {kind.__name__} with its own {', '.join(methods)}"
            raise ValueError(
                f"decoding in steps needs {name} to be {needed}; got {type(module).__name__}"
            )


def _fuse_layer(layer: Any, kind: Kind, of_itself: bool) -> None:
    """of_itself: whether queries, keys and values of the self-attention are one product."""
    for name in ("self_attention", "cross_attention"):
        attention = getattr(layer, name, None)
        if type(attention) is MultiHeadAttention and _are_affine(
            attention.query, attention.key, attention.value, attention.output
        ):
            setattr(
                layer, name, FusedAttention(attention, of_itself and name == "self_attention", kind)
            )
    feed_forward = getattr(layer, "feed_forward", None)
    for name in ("hidden", "output") if type(feed_forward) is FeedForward else ():
        if _are_affine(part := getattr(feed_forward, name)):
            setattr(feed_forward, name, kind(part))


def _fuse_logits(model: Any, kind: Kind) -> None:
    """A tied table that is small, or rounded to int8, is copied."""
    table_vd = model.table[...]
    if model.config.tie_logits and (table_vd.nbytes <= SMALL or kind is Int8Projection):
        model.logits.kernel = nnx.Param(table_vd.T)
    if hasattr(model.logits, "kernel"):
        model.logits = kind(model.logits)


def _are_affine(*projections: Any) -> bool:
    """Whether each computes `x W + b`, or each `x W`, and nothing else."""
    return (
        all(type(part) is Projection for part in projections)
        and len({part.bias is None for part in projections}) == 1
    )
