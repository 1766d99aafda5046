"""The affine map used by attention, feed-forward and logits."""

from torch import nn

__all__ = ["Projection"]


class Projection(nn.Linear):
    """`y = x W^T + b`: an `nn.Linear` with Xavier uniform weights and a zero bias (INIT)."""

    def reset_parameters(self) -> None:
        initialise(self)


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """Returns a plain `nn.Linear` initialized like a `Projection`; torch's quantizers match exact
    classes and skip subclasses.
    """
    module = nn.Linear(in_features, out_features, bias)
    initialise(module)
    return module


def initialise(module: nn.Module) -> None:
    """Initializes a module's own parameters (INIT): `model.apply(initialise)` after `to_empty`.

    `reset_parameters` of an `nn.Linear` draws other numbers.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding | nn.LayerNorm | nn.RMSNorm):
        module.reset_parameters()
