"""A model for inference: a copy with fused projections of one input.

Replaced projections, such as adapters, are called as they are.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from ..attention import MultiHeadAttention, clipped
from ..cache import check_steps
from ..embedding import Logits
from ..experts import MixtureOfExperts, expert
from ..feed_forward import FeedForward, gated
from ..kernels.int8 import Int8Projection
from ..kernels.projection import SMALL, FusedProjection
from ..projection import Projection
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Heads

__all__ = ["FusedAttention", "fused"]

Kind = type[FusedProjection]


class FusedAttention(MultiHeadAttention):
    """Multi-head attention whose query, key and value, or only key and value, are one product."""

    query: FusedProjection  # type: ignore[assignment]
    output: FusedProjection  # type: ignore[assignment]

    def __init__(self, attention: MultiHeadAttention, of_itself: bool, kind: Kind) -> None:
        self.of_itself = of_itself
        if of_itself:
            self.query_key_value = kind(attention.query, attention.key, attention.value)
        else:
            self.query, self.key_value = kind(attention.query), kind(attention.key, attention.value)
        self.output = kind(attention.output, inputs=2)
        self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        self.weights_dropout, self.scores = attention.weights_dropout, attention.scores
        self.sink = attention.sink
        self.width, self.rotary_layout = attention.width, attention.rotary_layout
        self.norm_after_rotation, self.clip = attention.norm_after_rotation, attention.clip

    def queries(self, query_btd: jax.Array, rotation: Rotation | None = None) -> jax.Array:
        (query_bthk,) = self.query.separate(query_btd)
        return self.query_key_norm(query_bthk, self.query_norm, rotation)

    def keys_and_values(
        self, memory_bsd: jax.Array, rotation: Rotation | None = None
    ) -> tuple[jax.Array, jax.Array]:
        key_bsgk, value_bsge = self.key_value.separate(memory_bsd)
        key_bsgk = self.query_key_norm(key_bsgk, self.key_norm, rotation)
        return key_bsgk, clipped(value_bsge, self.clip)

    def project(
        self, query_btd: jax.Array, memory_bsd: jax.Array, rotation: Rotation | None = None
    ) -> Heads:
        """In self-attention, memory_bsd equals query_btd and is not read."""
        if not self.of_itself:
            return super().project(query_btd, memory_bsd, rotation)
        query_bthk, key_btgk, value_btge = self.query_key_value.separate(query_btd)
        query_bthk = self.query_key_norm(query_bthk, self.query_norm, rotation)
        key_btgk = self.query_key_norm(key_btgk, self.key_norm, rotation)
        sink_h = None if self.sink is None else self.sink[...]
        return Heads(query_bthk, key_btgk, clipped(value_btge, self.clip), sink_h)


class FusedFeedForward(FeedForward):
    """A gated feed-forward whose gate and hidden layer are one product."""

    output: FusedProjection  # type: ignore[assignment]

    def __init__(self, feed_forward: FeedForward, kind: Kind) -> None:
        self.gate_hidden = kind(feed_forward.gate, feed_forward.hidden)
        self.output = kind(feed_forward.output)
        self.hidden_dropout = feed_forward.hidden_dropout
        self.activation_name, self.width = feed_forward.activation_name, feed_forward.width
        self.gating = feed_forward.gating

    def active(self, x_btd: jax.Array) -> jax.Array:
        gate_btf, hidden_btf = self.gate_hidden.separate(x_btd)
        return gated(gate_btf, hidden_btf, self.activation_name, self.gating)


class FusedLogits(Logits):
    """Logits whose affine map is a projection."""

    def __init__(self, logits: Logits, kind: Kind) -> None:
        self.projection = kind(logits)
        self.scale, self.cap = logits.scale, logits.cap

    @property
    def kernel(self) -> nnx.Param[jax.Array]:  # type: ignore[override]
        return self.projection.kernel

    def affine(self, x_btd: jax.Array, kernel_dv: jax.Array | None = None) -> jax.Array:
        return self.projection(x_btd)


def fused(model: Transformer, dtype: Dtype | None = None) -> Transformer:
    """Copies the model, in eval mode, for whole passes, steps and searches; returns such copies.

    dtype: of weights and computation; default, the model's. int8: projections are int8, the rest is
    float32 (INT8). Raises ValueError as `check_steps` does, and on a dtype for such a copy.
    """
    model.config.need_decoder()
    if hasattr(model, "is_fused"):
        if dtype is not None:
            raise ValueError(
                f"pass dtype with the original model; got {jnp.dtype(dtype)} and a copy made by "
                "`fused`, whose weights are already rounded"
            )
        return model
    kind: Kind = FusedProjection
    if dtype is not None and jnp.dtype(dtype) == jnp.int8:
        kind, dtype = Int8Projection, jnp.float32
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype must be floating or int8; got {jnp.dtype(dtype)}")
    check_steps(model)
    copy = nnx.clone(model)
    copy.eval()
    if dtype is not None:
        nnx.update(copy, jax.tree.map(lambda x: x.astype(dtype), nnx.state(copy, nnx.Param)))
        copy.set_attributes(dtype=dtype)
    if kind is Int8Projection and model.config.encoder_layers:
        for layer in copy.encoder.layers:
            _fuse_layer(layer, kind, of_itself=False)
    for layer in copy.decoder.layers:
        _fuse_layer(layer, kind, of_itself=True)
    if type(copy.logits) is Logits:
        _fuse_logits(copy, kind)
    copy.is_fused = True  # type: ignore[attr-defined]
    return copy


def _fuse_layer(layer: nnx.Module, kind: Kind, of_itself: bool) -> None:
    """Fuses projections. of_itself: fuses query, key and value of self-attention into one."""
    for name in ("self_attention", "cross_attention"):
        attention = getattr(layer, name, None)
        if type(attention) is MultiHeadAttention and _are_affine(
            attention.query, attention.key, attention.value, attention.output
        ):
            whole = of_itself and name == "self_attention"
            setattr(layer, name, FusedAttention(attention, whole, kind))
    feed_forward = getattr(layer, "feed_forward", None)
    if isinstance(feed_forward, MixtureOfExperts):  # of which a step reads only the chosen
        _fuse_feed_forward(feed_forward, "shared", kind)
        if kind is Int8Projection:
            _fuse_experts(feed_forward, kind)
    else:
        _fuse_feed_forward(layer, "feed_forward", kind)


def _fuse_feed_forward(owner: nnx.Module, name: str, kind: Kind) -> None:
    feed_forward = getattr(owner, name, None)
    if type(feed_forward) is not FeedForward:
        return
    if _are_affine(feed_forward.gate, feed_forward.hidden, feed_forward.output):
        setattr(owner, name, FusedFeedForward(feed_forward, kind))
        return
    for part in ("gate", "hidden", "output"):
        if _are_affine(projection := getattr(feed_forward, part)):
            setattr(feed_forward, part, kind(projection))


def _fuse_experts(mixture: MixtureOfExperts, kind: Kind) -> None:
    """Fuses each expert on its own; their arrays have a first axis x again."""
    each = []
    for index in range(mixture.router.config.experts):
        mixture.experts, experts = expert(mixture.experts, index), mixture.experts
        _fuse_feed_forward(mixture, "experts", kind)
        each.append(mixture.experts)
        mixture.experts = experts
    mixture.experts = jax.tree.map(lambda *arrays: jnp.stack(arrays), *each)


def _fuse_logits(model: Transformer, kind: Kind) -> None:
    """Fuses the logits; copies a tied table that is small, or rounded to int8."""
    table_vd = model.inputs("target").embedding.table[...]
    if model.config.tie_logits and (table_vd.nbytes <= SMALL or kind is Int8Projection):
        model.logits.kernel = nnx.Param(table_vd.T)
    if hasattr(model.logits, "kernel"):
        model.logits = FusedLogits(model.logits, kind)


def _are_affine(*projections: nnx.Module | None) -> bool:
    """Whether each computes `x W + b`, or each `x W`, and nothing else."""
    alike = len({part.bias is None for part in projections if type(part) is Projection}) == 1
    return alike and all(type(part) is Projection for part in projections)
