"""The affine map of every projection."""

import torch
from torch import nn

__all__ = ["Projection"]


class Projection(nn.Linear):
    """`y = x W^T + b`: an `nn.Linear` that starts with a Xavier uniform kernel and a zero bias (INIT)."""

    def reset_parameters(self) -> None:
        initialise(self)


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """An `nn.Linear` itself that starts as a `Projection`: quantisers of torch know a layer by its class and leave subclasses as they are."""
    module = nn.Linear(in_features, out_features, bias, device="meta").to_empty(device=torch.get_default_device())
    initialise(module)
    return module


def initialise(module: nn.Module) -> None:
    """The first values of the module's own parameters (INIT): `model.apply(initialise)` after `to_empty`.

    `reset_parameters` of an `nn.Linear` draws other numbers.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding | nn.LayerNorm):
        module.reset_parameters()
