"""A small convolutional network, in PyTorch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, classes: int = 5, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8, eps=epsilon)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2)
        self.fc1 = nn.Linear(16 * 3 * 3, 12)
        self.fc2 = nn.Linear(12, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 2)
        x = F.gelu(self.conv2(x))
        x = torch.flatten(x, 1)
        return self.fc2(F.relu(self.fc1(x)))


def trained(**settings: Any) -> nn.Module:
    """Sets running statistics that are not the initial ones."""
    torch.manual_seed(0)
    net = Net(**settings)
    for tensor in (net.bn1.running_mean, net.bn1.bias):
        nn.init.uniform_(tensor, -0.5, 0.5)
    for tensor in (net.bn1.running_var, net.bn1.weight):
        nn.init.uniform_(tensor, 0.5, 2.0)
    return net
