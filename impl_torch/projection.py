"""The affine map of every projection."""

from torch import nn

__all__ = ["Projection"]


class Projection(nn.Linear):
    """`y = x W^T + b`: an `nn.Linear` that starts Xavier uniform, with a zero bias (INIT)."""

    def reset_parameters(self) -> None:
        initialise(self)


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """Returns a plain `nn.Linear` that starts as a `Projection`: torch's quantisers know a layer by
    its class and pass over subclasses.
    """
    module = nn.Linear(in_features, out_features, bias)
    initialise(module)
    return module


def initialise(module: nn.Module) -> None:
    """Sets a module's own first values (INIT): `model.apply(initialise)` after `to_empty`.

    `reset_parameters` of an `nn.Linear` draws other numbers.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding | nn.LayerNorm | nn.RMSNorm):
        module.reset_parameters()
