"""The affine maps used by attention, feed-forward, experts and logits."""

import torch
from torch import Tensor, nn

__all__ = ["Projection", "Projections"]


class Projection(nn.Linear):
    """`y = x W^T + b`: an `nn.Linear` with Xavier uniform weights and a zero bias (INIT)."""

    def reset_parameters(self) -> None:
        initialise(self)


class Projections(nn.Module):
    """`y = x W_e + b_e` for each of several experts: kernels `x d m`, biases `x m`, initialized
    like a `Projection`.
    """

    def __init__(self, experts: int, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(experts, out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        limit = (6 / (self.weight.shape[1] + self.weight.shape[2])) ** 0.5
        nn.init.uniform_(self.weight, -limit, limit)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x_nd: Tensor, index: int) -> Tensor:
        """Computes rows of one expert."""
        y_nm = x_nd @ self.weight[index]
        return y_nm if self.bias is None else y_nm + self.bias[index]


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
    elif callable(reset := getattr(module, "reset_parameters", None)):
        reset()
    elif isinstance(sink := getattr(module, "sink", None), nn.Parameter):  # of an attention
        nn.init.zeros_(sink)
