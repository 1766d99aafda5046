"""An attention of bare parameters, whose mask is True where a key is hidden."""

import torch
from torch import nn


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.randn(d, d)) for _ in range(4))

    def forward(self, q, k, v, mask=None):
        def split(x):
            return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

        q, k, v = split(q @ self.wq), split(k @ self.wk), split(v @ self.wv)
        s = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
        if mask is not None:
            s = s.masked_fill(mask, -1e9)
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.wo
