"""Convolutions before a transformer layer over series, and a U-Net that returns an image, in PyTorch.

planted: a difference: `epsilon` of the last norm, `scale` of the scores, `gelu` of the feed-forward network,
order of `skip`ped channels, `dilation` of the first layer, interleaved `positions`. turned: swaps the output's last two axes.
"""

import torch
from sinusoids import sinusoids
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, planted=""):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width, eps=1e-2 if planted == "epsilon" else 1e-5)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale, self.approximate = (1.0 if planted == "scale" else 0.5), ("tanh" if planted == "gelu" else "none")

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.query, self.key, self.value))
        y = (q @ k.transpose(-1, -2) * self.scale).softmax(-1) @ v
        x = x + self.output(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.approximate))


class Series(nn.Module):
    """Whisper's stem with a causal first layer: `b c t`, or `b t d` if so declared."""

    def __init__(self, width=12, planted="", turned=False, last=False):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(5, width, 3), nn.Conv1d(width, width, 3, 2, padding=1)
        self.block, self.turned, self.last = Block(width, planted), turned, last

    def forward(self, x):
        x = x.mT if self.last else x
        x = F.gelu(self.conv2(F.gelu(self.conv1(F.pad(x, (2, 0)))))).transpose(1, 2)
        x = self.block(x + torch.from_numpy(sinusoids(*x.shape[1:], False)).to(x.dtype))
        return x.transpose(1, 2) if self.turned else x


class Dense(nn.Module):
    """Maps an image to an image, channels first."""

    def __init__(self, width=12, planted="", turned=False):
        super().__init__()
        self.down, self.turned = nn.Conv2d(4, width, 3, 2, padding=1), turned
        self.norm = nn.GroupNorm(2, width, eps=1e-2 if planted == "epsilon" else 1e-5)
        self.up, self.out = nn.ConvTranspose2d(width, width, 2, 2), nn.Conv2d(width + 4, 8, 1)

    def forward(self, x):
        x = self.out(torch.cat([torch.relu(self.up(torch.relu(self.norm(self.down(x))))), x], 1))
        return x.transpose(2, 3) if self.turned else x
