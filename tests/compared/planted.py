"""The small network of conv_torch.py with one bug each."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from conv_torch import Net
from torch import nn


def _with(**layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Returns a function that builds the network with these layers instead of its own."""

    def build() -> nn.Module:
        net = Net()
        for name, make in layers.items():
            setattr(net, name, make())
        return net

    return build


epsilon = partial(Net, epsilon=1e-3)
# the second convolution begins one pixel later
stride = _with(conv2=lambda: nn.Sequential(nn.ZeroPad2d((-1, 1, -1, 1)), nn.Conv2d(8, 16, 3, stride=2)))
padding = _with(conv1=partial(nn.Conv2d, 3, 8, 3, padding=1, padding_mode="reflect"))
bias = _with(fc1=partial(nn.Linear, 144, 12, bias=False))
narrow = _with(fc1=partial(nn.Linear, 144, 13), fc2=partial(nn.Linear, 13, 5))


class Other(Net):
    """place: the activation precedes the norm."""

    def __init__(self, place: bool = False, pool: Any = F.max_pool2d, approximate: str = "none") -> None:
        super().__init__()
        self.place, self.pool, self.approximate = place, pool, approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv1(x)
        x = self.bn1(F.relu(x)) if self.place else F.relu(self.bn1(x))
        x = F.gelu(self.conv2(self.pool(x, 2)), approximate=self.approximate)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


Place = partial(Other, place=True)
Pool = partial(Other, pool=F.avg_pool2d)
Gelu = partial(Other, approximate="tanh")


class Swapped(Net):
    """Kernels with swapped spatial axes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.conv2.forward = lambda x: F.conv2d(x, self.conv2.weight.transpose(2, 3), self.conv2.bias, stride=2)
        return super().forward(x)


class Crash(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os._exit(7)


class Mortal(Net):
    """Exits in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            os._exit(7)
        return super().forward(x)


class Hang(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while True:
            pass


class Random(Net):
    """Draws random numbers in training, which matter in a third of the steps."""

    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if not self.training:
            return y
        Random.steps += 1
        return y + torch.rand_like(y) * (Random.steps % 3 == 0)


def damaged() -> nn.Module:
    net = Net()
    net.fc1.weight.data[0, 0] = float("nan")
    return net
