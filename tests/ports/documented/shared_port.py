"""A port whose heads share their kernels: each head applies the same kernel to its slice of the width."""

import torch
from torch import nn

from rosettaformer.ports import CLASSIC


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values = (nn.Linear(width // heads, width // heads, bias=False) for _ in range(3))
        self.fc_out = nn.Linear(width, width, bias=False)

    def forward(self, values, keys, queries):
        pairs = ((self.queries, queries), (self.keys, keys), (self.values, values))
        q, k, v = (layer(x.unflatten(-1, (self.heads, -1))) for layer, x in pairs)
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / q.size(-1) ** 0.5
        return self.fc_out(torch.einsum("nhql,nlhd->nqhd", energy.softmax(-1), v).flatten(2))


framework = "torch"
components = {"multi_head_attention": lambda c, dtype: Attention(c.model_width, c.heads)}
weights = (
    ("query.kernel", "queries.weight", "k i"),
    ("key.kernel", "keys.weight", "k i"),
    ("value.kernel", "values.weight", "e i"),
    ("output.kernel", "fc_out.weight", "d (h e)"),
)
call = {"multi_head_attention": {"values": "memory_bsd", "keys": "memory_bsd", "queries": "query_btd"}}
config = CLASSIC | {"model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "attention_bias": False}
