"""A model as the steps of decoding run it: a copy of its weights, with the projections of one input in one kernel."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .attention import MultiHeadAttention
from .linear import FusedLinear
from .transformer import Transformer

__all__ = ["FusedAttention", "fused", "pack"]


class FusedAttention(MultiHeadAttention):
    """Multi-head attention whose query, key and value are one product (self-attention), or key and value (cross-attention)."""

    query_key_value: FusedLinear
    key_value: FusedLinear

    def __init__(self, attention: MultiHeadAttention, of_itself: bool) -> None:
        nn.Module.__init__(self)
        self.heads, self.key_value_heads, self.weights_dropout = attention.heads, attention.key_value_heads, attention.weights_dropout
        key_value = (attention.key, attention.value)
        kernels: dict[str, Any] = {"output": FusedLinear(attention.output)}
        if of_itself:
            kernels["query_key_value"] = FusedLinear(attention.query, *key_value)
        else:
            kernels |= {"query": FusedLinear(attention.query), "key_value": FusedLinear(*key_value)}
        for name, kernel in kernels.items():
            setattr(self, name, kernel)

    def keys_and_values(self, memory_bsd: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self.key_value(memory_bsd).split(self.key_value.sizes, dim=-1)
        return self._split(key), self._split(value)

    def project(self, x_btd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.query_key_value(x_btd).split(self.query_key_value.sizes, dim=-1)
        return query.unflatten(-1, (self.heads, -1)), self._split(key), self._split(value)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.key_value_heads, -1))


@torch.no_grad()
def fused(model: Transformer, dtype: torch.dtype | None = None) -> Transformer:
    """A copy of the model in evaluation, for steps and searches; raises ValueError where there is no decoder.

    dtype: every weight is rounded to it; by default it is the model's.
    """
    model.need_decoder()
    result: Any = copy.deepcopy(model).eval().requires_grad_(False).to(dtype=dtype)
    for layer in result.decoder.layers:
        layer.self_attention = FusedAttention(layer.self_attention, True)
        layer.cross_attention = FusedAttention(layer.cross_attention, False)
        for name in ("hidden", "output"):
            setattr(layer.feed_forward, name, FusedLinear(getattr(layer.feed_forward, name)))
    result.logits = FusedLinear(result.logits)
    return result


def pack(model: Transformer, rows: int) -> bool:
    """Lays the kernels of a fused model out for steps of so many rows.

    Returns whether a graph is to have them as constants, so that it lays them out itself: where reading them is most of a step's time.
    """
    modules = [module for name, module in model.named_modules() if not name.endswith("cross_attention.key_value")]
    kernels = [module for module in modules if isinstance(module, FusedLinear)]
    packed = [kernel.pack(rows) for kernel in kernels]
    return rows >= 4 and any(packed) and sum(kernel.weight.nbytes for kernel in kernels) >= _MANY_BYTES


_MANY_BYTES = 8 << 20
