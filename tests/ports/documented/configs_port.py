"""A port that fixes one field of the config: its modules read the others from each case's config."""

from torch import nn

from rosettaformer.ports import CLASSIC


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.groups, bias = c.heads, c.key_value_heads, c.attention_bias
        self.q = nn.Linear(c.model_width, c.heads * c.key_size, bias)
        self.k = nn.Linear(c.model_width, c.key_value_heads * c.key_size, bias)
        self.v = nn.Linear(c.model_width, c.key_value_heads * c.value_size, bias)
        self.out = nn.Linear(c.heads * c.value_size, c.model_width, bias)

    def forward(self, x, memory, mask):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k(memory).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        v = self.v(memory).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        k, v = (y.repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        weights = scores.softmax(-1)
        if mask is not None:  # zeros where a query may attend to nothing
            weights = weights * mask
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.pre = c.norm_placement == "pre"
        self.attn = Attention(c)
        d, f = c.model_width, c.feed_forward_width
        self.mlp = nn.Sequential(nn.Linear(d, f), nn.ReLU(), nn.Linear(f, d))
        self.norm1, self.norm2 = (nn.LayerNorm(d, c.epsilon) for _ in range(2))

    def forward(self, x, mask=None):
        if self.pre:
            y = self.norm1(x)
            x = x + self.attn(y, y, mask)
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attn(x, x, mask))
        return self.norm2(x + self.mlp(x))


framework = "torch"
dtypes = ("float64", "float32")
components = {
    "multi_head_attention": lambda c, dtype: Attention(c),
    "encoder_layer": lambda c, dtype: Block(c),
}
weights = {
    "multi_head_attention": (
        ("query.kernel", "q.weight", "(h k) d"),
        ("query.bias", "q.bias", "(h k)"),
        ("key.kernel", "k.weight", "(g k) d"),
        ("key.bias", "k.bias", "(g k)"),
        ("value.kernel", "v.weight", "(g e) d"),
        ("value.bias", "v.bias", "(g e)"),
        ("output.kernel", "out.weight", "d (h e)"),
        ("output.bias", "out.bias", "d"),
    ),
    "feed_forward": (
        ("hidden.kernel", "0.weight", "f d"),
        ("hidden.bias", "0.bias", "f"),
        ("output.kernel", "2.weight", "d f"),
        ("output.bias", "2.bias", "d"),
    ),
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "encoder_layer": (
        ("self_attention", "attn"),
        ("feed_forward", "mlp"),
        ("self_attention_norm", "norm1"),
        ("feed_forward_norm", "norm2"),
    ),
}
call = {
    "multi_head_attention": {"x": "query_btd", "memory": "memory_bsd", "mask": "mask_bhts"},
    "encoder_layer": {"x": "x_btd", "mask": "mask_bhts"},
}
config = CLASSIC | {"activation": "relu"}  # the only field that is fixed
