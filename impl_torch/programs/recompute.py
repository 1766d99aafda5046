"""Layers whose activations are computed again in the backward pass, and not kept."""

import contextlib
from collections.abc import Iterator
from functools import partial

from torch.utils.checkpoint import checkpoint

from ..layers import Layer
from ..transformer import Transformer

__all__ = ["recomputed"]


@contextlib.contextmanager
def recomputed(model: Transformer) -> Iterator[None]:
    """Within the block, the forward pass of each layer of the model keeps its inputs alone.

    The masks of a layer are drawn again as they were. A compiled step may draw other masks than
    the same step without recomputation.
    """
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
