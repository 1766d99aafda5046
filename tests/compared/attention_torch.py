"""Self-attention of four linear layers, and of torch's own layer, which stores its projections itself."""

import torch
from torch import nn


class Stock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(12), nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x):
        x = self.norm(x)
        return self.attn(x, x, x, need_weights=False)[0]


class Own(nn.Module):
    scale = 4**-0.5

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x):
        x = self.norm(x)
        q, k, v = (part(x).unflatten(-1, (3, 4)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


class Scaled(Own):
    scale = 0.3


class Fused(nn.Module):
    """`Scaled` with its projections concatenated in one layer."""

    def __init__(self):
        super().__init__()
        self.norm, self.in_proj, self.out_proj = nn.LayerNorm(12), nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in self.in_proj(self.norm(x)).chunk(3, -1))
        return self.out_proj(((q @ k.transpose(-1, -2) * 0.3).softmax(-1) @ v).transpose(1, 2).flatten(2))


def seeded():
    torch.manual_seed(0)
    return Own()
