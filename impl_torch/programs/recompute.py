"""Layers whose activations are computed again in the backward pass, and not kept."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

from ..transformer import Transformer

__all__ = ["recomputed"]


@contextlib.contextmanager
def recomputed(model: Transformer) -> Iterator[None]:
    """Within the block, the forward pass of each layer of the model keeps its inputs alone.

    The masks of a layer are drawn again as they were. A compiled step may draw other masks than
    the same step without recomputation.
    """
    stacks = [getattr(model, name) for name in ("encoder", "decoder") if hasattr(model, name)]
    layers: list[Any] = [layer for stack in stacks for layer in stack.layers]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
