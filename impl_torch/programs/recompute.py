"""Recomputes the activations of layers in the backward pass instead of storing them."""

import contextlib
from collections.abc import Iterator
from functools import partial

from torch.utils.checkpoint import checkpoint

from ..layers import Layer
from ..transformer import Transformer

__all__ = ["recomputed"]


@contextlib.contextmanager
def recomputed(model: Transformer) -> Iterator[None]:
    """Context in which the forward pass of each layer of the model saves only its inputs.

    Recomputed layers draw the same masks again. A compiled step may draw other masks than the same
    step without recomputation.
    """
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
