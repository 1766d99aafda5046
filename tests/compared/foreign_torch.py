"""Models in published styles: a custom norm, a tied head, closures, a fixed dtype, positions in two shapes."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


class OwnNorm(nn.Module):
    """A norm with a switch for its offset, not an `nn.LayerNorm`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.3 * torch.randn(width))
        self.bias = nn.Parameter(0.3 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Small(nn.Module):
    """Tokens and positions, a norm, a feed-forward, a head."""

    def __init__(self, norm: type = OwnNorm, tied: bool = False, row: bool = False, approximate: str = "none") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.position = nn.Embedding(19, 6), nn.Embedding(11, 6)
        self.norm = norm(6)
        self.up, self.down = nn.Linear(6, 13), nn.Linear(13, 6)
        self.head = nn.Linear(6, 19, bias=False)
        self.row, self.approximate = row, approximate
        if tied:
            self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        place = torch.arange(ids.shape[1])
        x = self.token(ids) + self.position(place[None] if self.row else place)
        x = x + self.down(F.gelu(self.up(self.norm(x)), approximate=self.approximate))
        return self.head(x)


stock = partial(Small, nn.LayerNorm)
tied = partial(Small, tied=True)
row = partial(Small, row=True, approximate="tanh")


class Closure(nn.Module):
    """A block whose function closes over its layers."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.parts = nn.ModuleDict({"up": nn.Linear(5, 9), "down": nn.Linear(9, 5)})
        parts = self.parts
        self.run = lambda x: parts["down"](F.silu(parts["up"](x))) * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.run(x)


other_closure = partial(Closure, 1.01)


class Fixed(nn.Module):
    """A module that casts to float32, and so cannot have float64 weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.inner = nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.float())
