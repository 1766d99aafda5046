"""The small network of conv_torch.py with one mistake each."""

import os

import torch
import torch.nn.functional as F
from conv_torch import Net
from torch import nn


def epsilon() -> nn.Module:
    return Net(epsilon=1e-3)


def stride() -> nn.Module:
    """The second convolution begins one pixel later."""
    net = Net()
    net.conv2 = nn.Sequential(nn.ZeroPad2d((-1, 1, -1, 1)), nn.Conv2d(8, 16, 3, stride=2))
    return net


def padding() -> nn.Module:
    net = Net()
    net.conv1.padding_mode = "reflect"
    net.conv1._reversed_padding_repeated_twice = [1, 1, 1, 1]
    return net


def bias() -> nn.Module:
    net = Net()
    net.fc1 = nn.Linear(144, 12, bias=False)
    return net


class Place(Net):
    """The activation stands before the norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn1(F.relu(self.conv1(x)))
        x = F.max_pool2d(x, 2)
        x = F.gelu(self.conv2(x))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Pool(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.avg_pool2d(x, 2)
        x = F.gelu(self.conv2(x))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Gelu(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 2)
        x = F.gelu(self.conv2(x), approximate="tanh")
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Swapped(Net):
    """Kernels whose two axes in space are exchanged."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.conv2.forward = lambda x: F.conv2d(x, self.conv2.weight.transpose(2, 3), self.conv2.bias, stride=2)
        return super().forward(x)


class Crash(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os._exit(7)


class Mortal(Net):
    """Ends in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            os._exit(7)
        return super().forward(x)


class Hang(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while True:
            pass


class Random(Net):
    """Adds noise in training, where no layer says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y + torch.randn_like(y) if self.training else y


def narrow() -> nn.Module:
    net = Net()
    net.fc1 = nn.Linear(144, 13)
    net.fc2 = nn.Linear(13, 5)
    return net


def damaged() -> nn.Module:
    net = Net()
    net.fc1.weight.data[0, 0] = float("nan")
    return net


def text() -> str:
    return "no model"
