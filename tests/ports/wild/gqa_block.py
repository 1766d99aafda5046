"""Grouped-query attention by einsum, and an encoder block around it (pre-norm, erf GELU, attention without biases)."""
import torch
from torch import nn
from rosettaformer.ports import CLASSIC


def masked_softmax(logits, mask=None):
    """Softmax over the last axis where mask is True; rows without any True are zero."""
    if mask is None:
        return torch.softmax(logits, dim=-1)
    weights = torch.softmax(logits.masked_fill(~mask, float("-inf")), dim=-1)
    return torch.where(mask, weights, torch.zeros_like(weights))


class GroupedQueryAttention(nn.Module):
    def __init__(self, width, heads, groups, size):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.repeats = heads // groups
        self.q = nn.Linear(width, heads * size, bias=False)
        self.kv = nn.Linear(width, 2 * groups * size, bias=False)
        self.out = nn.Linear(heads * size, width, bias=False)

    def forward(self, x, xa=None, mask=None, bias=None, causal=False, return_weights=False):
        xa = x if xa is None else xa
        B, T, S = x.shape[0], x.shape[1], xa.shape[1]
        scale = self.size ** -0.25   # on both sides, as products of half-precision numbers overflow otherwise
        q = self.q(x).view(B, T, self.groups, self.repeats, self.size) * scale
        k, v = self.kv(xa).view(B, S, 2, self.groups, self.size).unbind(2)
        k = k * scale

        logits = torch.einsum("btgrk,bsgk->bgrts", q, k).flatten(1, 2)
        if bias is not None:
            logits = logits + bias
        if causal:
            rows = torch.arange(S - T, S, device=x.device)[:, None]
            seen = torch.arange(S, device=x.device)[None, :] <= rows
            mask = seen if mask is None else mask & seen
        weights = masked_softmax(logits, mask)

        grouped = weights.view(B, self.groups, self.repeats, T, S)
        y = torch.einsum("bgrts,bsge->btgre", grouped, v).reshape(B, T, self.heads * self.size)
        y = self.out(y)
        return (y, weights) if return_weights else y


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1 = nn.LayerNorm(c.model_width, eps=c.epsilon)
        self.attn = GroupedQueryAttention(c.model_width, c.heads, c.key_value_heads, c.key_size)
        self.ln2 = nn.LayerNorm(c.model_width, eps=c.epsilon)
        self.ffn = nn.Sequential(
            nn.Linear(c.model_width, c.feed_forward_width), nn.GELU(), nn.Linear(c.feed_forward_width, c.model_width))

    def forward(self, x, mask=None):
        x = x + self.attn(self.ln1(x), mask=mask)
        return x + self.ffn(self.ln2(x))


framework = "torch"
dtypes = ("float64", "float32")
config = CLASSIC | {"heads": 6, "key_value_heads": 2, "key_size": 3, "value_size": 3,
    "attention_bias": False, "norm_placement": "pre", "activation": "gelu_erf"}


def to(module, dtype):
    return module.to(dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype)))


components = {
    "softmax": lambda c, dtype: masked_softmax,
    "multi_head_attention": lambda c, dtype: to(
        GroupedQueryAttention(c.model_width, c.heads, c.key_value_heads, c.key_size), dtype),
    "encoder_layer": lambda c, dtype: to(Block(c), dtype),
}

weights = {
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "multi_head_attention": (("query.kernel", "q.weight", "(h k) d"),
        ("key.kernel", "kv.weight", "(0/2 g k) d"), ("value.kernel", "kv.weight", "(1/2 g e) d"),
        ("output.kernel", "out.weight", "d (h e)")),
    "feed_forward": (("hidden.kernel", "0.weight", "f d"), ("hidden.bias", "0.bias", "f"),
        ("output.kernel", "2.weight", "d f"), ("output.bias", "2.bias", "d")),
    "encoder_layer": (("self_attention", "attn"), ("self_attention_norm", "ln1"),
        ("feed_forward", "ffn"), ("feed_forward_norm", "ln2")),
}

call = {
    "softmax": {"logits": "logits", "mask": "mask"},
    "multi_head_attention": {"x": "query_btd", "xa": "memory_bsd", "mask": "mask_bhts",
        "bias": "bias_bhts", "causal": "causal", "return_weights": "return_weights"},
    "encoder_layer": {"x": "x_btd", "mask": "mask_bhts"},
}
