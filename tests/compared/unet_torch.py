"""A small U-Net: channels are concatenated, and a transposed convolution goes up."""

import torch
from torch import nn


class Up(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.up = nn.ConvTranspose2d(width, out, 2, 2)
        self.conv = nn.Conv2d(2 * out, out, 3, padding=1)
        self.norm = nn.GroupNorm(4, out)

    def forward(self, x, skip):
        return torch.relu(self.norm(self.conv(torch.cat([self.up(x), skip], 1))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, 8)
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, 16)
        self.up = Up(16, 8)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        wide = torch.relu(self.norm1(self.conv1(x)))
        deep = torch.relu(self.norm2(self.conv2(self.pool(wide))))
        return self.out(self.up(deep, wide))
