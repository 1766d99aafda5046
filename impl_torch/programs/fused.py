"""Snapshots of a model for inference; for decoding, projections of one input become one kernel.

Searches run snapshots, and an encoder-only model is fastest as one. Replaced projections, such as
adapters, are called as they are.
"""

import copy
import re
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reference_numpy import checks

from ..attention import MultiHeadAttention, clipped
from ..embedding import Logits, scaled_and_capped
from ..experts import MixtureOfExperts
from ..feed_forward import FeedForward, gated
from ..framework import is_changed, is_sharded
from ..kernels.int8 import Int8Projection, Int8Projections, check_int8
from ..kernels.projection import FusedProjection
from ..projection import Projection, Projections
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Heads

__all__ = ["Dtype", "FusedAttention", "FusedFeedForward", "FusedLogits", "fused", "pack"]

Dtype = torch.dtype | Literal["int8"]
Kind = type[FusedProjection] | type[Int8Projection]


class FusedAttention(MultiHeadAttention):
    """A `MultiHeadAttention` whose query, key and value (self-attention), or key and value
    (cross-attention), are one product.
    """

    def __init__(
        self, attention: MultiHeadAttention, of_itself: bool, kind: Kind = FusedProjection
    ) -> None:
        nn.Module.__init__(self)
        self.width = attention.width
        self.key_size, self.value_size = attention.key_size, attention.value_size
        self.config, self.scores, self.of_itself = attention.config, attention.scores, of_itself
        self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        self.weights_dropout, self.sink = attention.weights_dropout, attention.sink
        self.output: Any = kind(attention.output)
        if of_itself:
            self.query_key_value = kind(attention.query, attention.key, attention.value)
        else:
            self.query: Any = kind(attention.query)
            self.key_value = kind(attention.key, attention.value)

    def keys_and_values(
        self, memory_bsd: Tensor, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor]:
        key, value = self.key_value(memory_bsd).split(self.key_value.sizes, dim=-1)
        key_bsgk = self.query_key_norm(key, self.key_norm, rotation)
        value_bsge = value.unflatten(-1, (-1, self.value_size))
        return key_bsgk, clipped(value_bsge, self.config.query_key_value_clip)

    def project(
        self, query_btd: Tensor, memory_bsd: Tensor, rotation: Rotation | None = None
    ) -> Heads:
        """In self-attention, memory_bsd equals query_btd and is not read."""
        if not self.of_itself:
            return super().project(query_btd, memory_bsd, rotation)
        sizes = self.query_key_value.sizes
        query, key, value = self.query_key_value(query_btd).split(sizes, dim=-1)
        return Heads(
            self.query_key_norm(query, self.query_norm, rotation),
            self.query_key_norm(key, self.key_norm, rotation),
            clipped(value.unflatten(-1, (-1, self.value_size)), self.config.query_key_value_clip),
            self.sink,
        )


class FusedFeedForward(FeedForward):
    """A gated `FeedForward` whose gate and hidden layer are one product."""

    def __init__(self, network: Any, kind: Kind = FusedProjection) -> None:
        nn.Module.__init__(self)
        self.activation_name, self.width = network.activation_name, network.width
        self.gating = network.gating
        self.gate_hidden = kind(network.gate, network.hidden)
        self.output, self.hidden_dropout = network.output, network.hidden_dropout

    def forward(self, x_btd: Tensor, keep_btf: Tensor | None = None) -> Tensor:
        checks.check_features("x", x_btd.shape, self.width)
        gate_btf, hidden_btf = self.gate_hidden(x_btd).split(self.gate_hidden.sizes, dim=-1)
        active_btf = gated(gate_btf, hidden_btf, self.activation_name, self.gating)
        return self.output(self.hidden_dropout(active_btf, keep_btf))


class FusedLogits(nn.Module):
    """`Logits` with a scale or cap."""

    def __init__(self, logits: Logits, kind: Kind = FusedProjection) -> None:
        super().__init__()
        self.scale, self.cap, self.product = logits.scale, logits.cap, kind(logits)

    def forward(self, x_btd: Tensor) -> Tensor:
        return scaled_and_capped(self.product(x_btd), self.scale, self.cap)


PROJECTIONS: dict[type, tuple[str, ...]] = {
    MultiHeadAttention: ("query", "key", "value", "output"),
    FeedForward: ("gate", "hidden", "output"),
    FusedFeedForward: ("output",),
}


@torch.no_grad()
def fused(model: Transformer, dtype: Dtype | None = None) -> Transformer:
    """Copies the model for evaluation: whole passes, `encode`, steps and searches.

    dtype: of the copied weights; default, the model's. int8: projections are int8, the rest is
    float32 (INT8). Raises ValueError on any other name, and if the device has no int8 products.
    """
    kind: Kind = FusedProjection
    if isinstance(dtype, str) or dtype == torch.int8:
        check_int8(dtype, next(model.parameters()).device)
        kind, dtype = Int8Projection, torch.float32
    if any(map(is_sharded, model.parameters())):
        raise ValueError(
            "a search needs whole parameters; got sharded ones: use `weights.export`, then "
            "`weights.load` into an unsharded model"
        )
    # Deepcopy rejects tensors computed from parameters, as in pruned modules.
    held = [x for module in model.modules() for x in vars(module).values()]
    computed = [x for x in held if isinstance(x, Tensor) and not x.is_leaf]
    result: Any = copy.deepcopy(model, {id(x): x.detach().clone() for x in computed})
    result.eval().requires_grad_(False).to(dtype=dtype)
    mixed = [module for module in result.modules() if isinstance(module, MixtureOfExperts)]
    for module in mixed:
        module.experts.in_process = True
        for name, part in [*module.experts.named_children()] if kind is Int8Projection else ():
            if type(part) is Projections and not is_changed(part):
                setattr(module.experts, name, Int8Projections(part))
        _fuse_feed_forward(module, "shared", kind)
    for layer in result.encoder.layers if model.config.encoder_layers else ():
        _fuse_parts(layer.self_attention, kind)
        _fuse_feed_forward(layer, "feed_forward", kind)
    if not model.config.decoder_layers:
        return result
    for layer in result.decoder.layers:
        for name in ("self_attention", "cross_attention"):
            attention: Any = getattr(layer, name, None)
            own = type(attention) is MultiHeadAttention and _is_affine(attention.output)
            if own and _joins(attention, "query", "key", "value"):
                setattr(layer, name, FusedAttention(attention, name == "self_attention", kind))
        _fuse_feed_forward(layer, "feed_forward", kind)
    config = model.config
    if _is_affine(result.logits) and (config.logit_scale, config.logit_cap) != (1, None):
        result.logits = FusedLogits(result.logits, kind)
    _fuse_parts(result, kind)
    return result


def _joins(module: nn.Module, *names: str) -> bool:
    """Whether these projections of an unchanged module can be one product."""
    parts = [getattr(module, name) for name in names]
    alike = all(map(_is_affine, parts)) and len({part.bias is None for part in parts}) == 1
    return alike and not is_changed(module)


def _fuse_feed_forward(owner: nn.Module, name: str, kind: Kind) -> None:
    network = getattr(owner, name)
    if type(network) is FeedForward and _joins(network, "gate", "hidden"):
        setattr(owner, name, FusedFeedForward(network, kind))
    _fuse_parts(getattr(owner, name), kind)


def _fuse_parts(module: nn.Module, kind: Kind) -> None:
    names = ("logits",) if isinstance(module, Transformer) else PROJECTIONS.get(type(module), ())
    for name in names:
        if _is_affine(part := getattr(module, name)):
            setattr(module, name, kind(part))


def _is_affine(module: nn.Module) -> bool:
    """Whether the module computes `x W + b` and nothing else: a parametrized module has another
    class, a quantized one another tensor class.
    """
    if type(module) not in (nn.Linear, Projection, Logits) or is_changed(module):
        return False
    return type(module.weight) in (nn.Parameter, Tensor)


def pack(model: Transformer, rows: int) -> None:
    """Packs the kernels of a fused model for steps of this number of rows."""
    unread = re.compile(r"encoder\.|.*cross_attention\.key_value")  # not part of a step
    for name, module in model.named_modules():
        if isinstance(module, FusedProjection) and not unread.match(name):
            module.pack(rows)
