# region imports
import math

import torch
from torch import nn


# region feed_forward
class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate="tanh"))


# region dot_product
def attention(query, key, value, mask=None, causal=False):
    logits = torch.einsum("bthk,bshk->bhts", query, key) / math.sqrt(query.shape[-1])
    target, source = logits.shape[-2:]
    hidden = torch.zeros(target, source, dtype=torch.bool)
    if causal:
        hidden = torch.ones(target, source, dtype=torch.bool).triu(1 + source - target)
    if mask is not None:
        hidden = hidden | mask
    weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
    weights = weights.masked_fill(hidden, 0)  # fully masked query: 0, not NaN
    return torch.einsum("bhts,bshe->bthe", weights, value)


# region multi_head
class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, memory, mask=None, causal=False):
        query = self.query(x).unflatten(-1, (self.heads, -1))  # b t (h k) -> b t h k
        key = self.key(memory).unflatten(-1, (self.heads, -1))
        value = self.value(memory).unflatten(-1, (self.heads, -1))
        return self.out(attention(query, key, value, mask, causal).flatten(2))  # (h k) again


# region block
class Block(nn.Module):
    def __init__(self, width, heads, hidden, epsilon):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)
        self.attn, self.mlp = Attention(width, heads), FeedForward(width, hidden)

    def forward(self, x, mask=None):
        y = self.ln_1(x)
        x = x + self.attn(y, y, mask, causal=True)
        return x + self.mlp(self.ln_2(x))


# region stack
class Stack(nn.Module):
    def __init__(self, layers, width, heads, hidden, epsilon):
        super().__init__()
        self.h = nn.ModuleList(Block(width, heads, hidden, epsilon) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, epsilon)

    def forward(self, x, mask=None):
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x)


# region model
def positions(real):
    first = torch.where(real.any(1), real.int().argmax(1), real.shape[1])
    return (torch.arange(real.shape[1]) - first[:, None]).clamp(min=0)


class GPT2(nn.Module):
    def __init__(self, vocabulary, length, layers, width, heads, hidden, epsilon):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.stack = Stack(layers, width, heads, hidden, epsilon)

    def forward(self, ids, real=None):
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        x = self.wte(ids) + self.wpe(positions(real))
        x = self.stack(x, real[:, None, None, :])
        return x @ self.wte.weight.T
