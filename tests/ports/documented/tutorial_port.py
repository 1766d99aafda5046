"""An encoder as tutorials write it, and its port: convolutions of width 1, -1e9 in the mask, a buffer of positions.

`check` fails on two of its cases: with -1e9 instead of -inf, a query that may attend to nothing averages the values.
"""

import math

import torch
from torch import nn

from rosettaformer.ports import CLASSIC


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v, self.fc = (nn.Linear(width, width) for _ in range(4))

    def forward(self, k, q, v, mask=None):
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        score = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            score = score.masked_fill(mask == 0, -1e9)
        return self.fc((score.softmax(-1) @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(width, hidden, 1), nn.Conv1d(hidden, width, 1)

    def forward(self, x):
        return self.conv2(torch.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)


class Positions(nn.Module):
    def __init__(self, width, dtype):
        super().__init__()
        angle = torch.arange(512)[:, None] * 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(dtype))

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attn, self.mlp = Attention(c.model_width, c.heads), FeedForward(c.model_width, c.feed_forward_width)
        self.norm1, self.norm2 = nn.LayerNorm(c.model_width, c.epsilon), nn.LayerNorm(c.model_width, c.epsilon)

    def forward(self, x, mask):
        x = self.norm1(x + self.attn(x, x, x, mask))
        return self.norm2(x + self.mlp(x))


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.encoder_layers))

    def forward(self, x, mask):
        for block in self.blocks:
            x = block(x, mask)
        return x


framework = "torch"
dtypes = ("float64", "float32")
components = {
    "positional_encoding": lambda c, dtype: Positions(c.model_width, dtype),
    "multi_head_attention": lambda c, dtype: Attention(c.model_width, c.heads),
    "feed_forward": lambda c, dtype: FeedForward(c.model_width, c.feed_forward_width),
    "encoder_layer": lambda c, dtype: Block(c),
    "encoder": lambda c, dtype: Encoder(c),
}
weights = {
    "multi_head_attention": (
        ("query.kernel", "w_q.weight", "(h k) d"),
        ("query.bias", "w_q.bias", "(h k)"),
        ("key.kernel", "w_k.weight", "(g k) d"),
        ("key.bias", "w_k.bias", "(g k)"),
        ("value.kernel", "w_v.weight", "(g e) d"),
        ("value.bias", "w_v.bias", "(g e)"),
        ("output.kernel", "fc.weight", "d (h e)"),
        ("output.bias", "fc.bias", "d"),
    ),
    "feed_forward": (
        ("hidden.kernel", "conv1.weight", "f d 1"),
        ("hidden.bias", "conv1.bias", "f"),
        ("output.kernel", "conv2.weight", "d f 1"),
        ("output.bias", "conv2.bias", "d"),
    ),
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "encoder_layer": (
        ("self_attention", "attn"),
        ("feed_forward", "mlp"),
        ("self_attention_norm", "norm1"),
        ("feed_forward_norm", "norm2"),
    ),
    "encoder": (("layers", "blocks"),),
}
call = {
    "positional_encoding": {"x": "zeros_btd"},
    "multi_head_attention": {"q": "query_btd", "k": "memory_bsd", "v": "memory_bsd", "mask": "mask_bhts"},
    "feed_forward": {"x": "x_btd"},
    "encoder_layer": {"x": "x_btd", "mask": "mask_bhts"},
    "encoder": {"x": "x_bsd", "mask": "mask_bhts"},
}
config = CLASSIC | {
    "encoder_layers": 2,
    "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "attention_bias": True,
    "activation": "relu", "norm_placement": "post", "final_norm": False,
}  # fmt: skip
