"""A block with one difference: a kernel that is stored or only applied otherwise, a layer that returns its input,
another activation, or one part less.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

KERNELS = {
    "transposed": lambda w: w.T,
    "heads": lambda w: w.unflatten(0, (3, 4)).flip(0).flatten(0, 1),
    "low rank": lambda w: w + torch.outer(torch.arange(12.0).cos(), torch.arange(12.0).sin()).to(w.dtype),
}
ACTIVATIONS = {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu^2": lambda x: F.relu(x) ** 2, "unchanged": lambda x: x}


class Net(nn.Module):
    def __init__(self, planted="", stored=False):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.query, self.key = nn.LayerNorm(12), nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.up, self.down, self.last = nn.Linear(12, 24), nn.Linear(24, 12), nn.LayerNorm(12)
        self.activation, self.planted = ACTIVATIONS.get(planted, F.gelu), planted
        change = KERNELS.get(planted)
        if stored:
            kernels = [self.key.weight, self.query.weight] if planted == "exchanged" else [change(self.query.weight), self.key.weight]
            self.query.weight, self.key.weight = (nn.Parameter(kernel.detach().clone()) for kernel in kernels)
        elif change:
            self.query.forward = lambda x: F.linear(x, change(self.query.weight))
        elif planted == "another":
            self.query.forward = lambda x: F.linear(x, self.key.weight)
        elif planted == "up":
            self.up.forward = lambda x: F.linear(x, 4 * self.up.weight, self.up.bias)
        elif planted in ("norm", "query"):
            self.get_submodule(planted).forward = lambda x: x

    def forward(self, x):
        x = self.norm(x)
        x = x + self.query(x) * self.key(x).sigmoid()
        y = self.down(self.activation(self.up(x)))
        y = y if self.planted == "residual" else x + y
        return y if self.planted == "last" else self.last(y)


Transposed = partial(Net, "transposed")


class Experts(nn.Module):
    """Two of six experts for each position, chosen after the softmax or before it."""

    def __init__(self, planted=""):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.router, self.last, self.planted = nn.LayerNorm(12), nn.Linear(12, 6, bias=False), nn.LayerNorm(12), planted
        self.kernel = nn.Parameter(torch.randn(6, 12, 12))

    def forward(self, x):
        y = self.norm(x)
        logits = self.router(y)
        weights, chosen = (logits if self.planted else logits.softmax(-1)).topk(2)
        weights = weights.softmax(-1) if self.planted else weights
        experts = torch.einsum("btd,xde->btxe", y, self.kernel).gather(2, chosen[..., None].expand(*chosen.shape, 12))
        return self.last(x + (experts * weights[..., None]).sum(2))
