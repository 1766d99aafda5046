"""A port whose modules have other boundaries than the components: sub-layers, token ids in, a built-in mask, lengths, no batch axis."""

import math

import torch
from torch import nn

from rosettaformer.ports import CLASSIC


def attention(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


class CausalSelfAttention(nn.Module):
    """One sequence; the mask is built in."""

    def __init__(self, width, heads, block_size=16):
        super().__init__()
        self.heads, self.c_attn, self.c_proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("bias", torch.ones(block_size, block_size, dtype=torch.bool).tril())

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        y = attention(q, k, v, self.bias[: x.size(1), : x.size(1)])
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MultiHeadAttention(nn.Module):
    """Takes the number of real keys instead of a mask."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, queries, keys, values, valid_lens=None):
        split = ((layer, x) for layer, x in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values)))
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer, x in split)
        lens = keys.new_full((len(keys),), keys.size(1)) if valid_lens is None else valid_lens
        real = torch.arange(keys.size(1)) < lens[:, None]
        return self.W_o(attention(q, k, v, real[:, None, None]).transpose(1, 2).flatten(2))


class AttentionWithNorm(nn.Module):
    """A sub-layer: attention, residual connection and norm. It returns a pair."""

    def __init__(self, width, heads, epsilon):
        super().__init__()
        self.mha, self.layer_norm = MultiHeadAttention(width, heads), nn.LayerNorm(width, epsilon)

    def forward(self, q, k, v, lens=None):
        y = self.mha(q, k, v, lens)
        return self.layer_norm(q + y), y


class FeedForwardWithNorm(nn.Module):
    def __init__(self, width, hidden, epsilon):
        super().__init__()
        self.w_1, self.w_2, self.layer_norm = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.LayerNorm(width, epsilon)

    def forward(self, x):
        return self.layer_norm(x + self.w_2(torch.relu(self.w_1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.slf_attn = AttentionWithNorm(c.model_width, c.heads, c.epsilon)
        self.pos_ffn = FeedForwardWithNorm(c.model_width, c.feed_forward_width, c.epsilon)

    def forward(self, x, lens=None):
        return self.pos_ffn(self.slf_attn(x, x, x, lens)[0])


class Encoder(nn.Module):
    """Maps token ids to vectors."""

    def __init__(self, c, dtype):
        super().__init__()
        self.scale, self.emb = math.sqrt(c.model_width), nn.Embedding(c.source_vocabulary, c.model_width)
        self.stack = nn.ModuleList(EncoderLayer(c) for _ in range(c.encoder_layers))
        angle = torch.arange(64)[:, None] * 10000 ** (-torch.arange(0, c.model_width, 2, dtype=torch.float64) / c.model_width)
        self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(dtype))

    def forward(self, ids, lens):
        x = self.emb(ids) * self.scale + self.pe[: ids.size(1)]
        for layer in self.stack:
            x = layer(x, lens)
        return x


class Generator(nn.Module):
    """Flattens all positions of all rows into one axis."""

    def __init__(self, c):
        super().__init__()
        self.proj = nn.Linear(c.model_width, c.target_vocabulary)

    def forward(self, x):
        return self.proj(x.flatten(0, 1))


def attend(query, key, value):
    """Takes one row without a batch axis, `t h k`."""
    weights = torch.einsum("thk,shk->hts", query, key).div(math.sqrt(query.size(-1))).softmax(-1)
    return torch.einsum("hts,she->the", weights, value)


framework = "torch"
dtypes = ("float64", "float32")
components = {
    "self_attention": lambda c, dtype: CausalSelfAttention(c.model_width, c.heads),
    "multi_head_attention": lambda c, dtype: MultiHeadAttention(c.model_width, c.heads),
    "self_attention_sublayer": lambda c, dtype: AttentionWithNorm(c.model_width, c.heads, c.epsilon),
    "cross_attention_sublayer": lambda c, dtype: AttentionWithNorm(c.model_width, c.heads, c.epsilon),
    "feed_forward_sublayer": lambda c, dtype: FeedForwardWithNorm(c.model_width, c.feed_forward_width, c.epsilon),
    "encoder_layer": lambda c, dtype: EncoderLayer(c),
    "token_encoder": Encoder,
    "logits": lambda c, dtype: Generator(c),
    "scaled_dot_product_attention": lambda c, dtype: attend,
}
attention_with_norm = (
    ("self_attention", "mha"),
    ("self_attention_norm", "layer_norm"),
    ("cross_attention", "mha"),
    ("cross_attention_norm", "layer_norm"),
)
weights = {
    "self_attention": (
        ("query.kernel", "c_attn.weight", "(0/3 h k) d"),
        ("query.bias", "c_attn.bias", "(0/3 h k)"),
        ("key.kernel", "c_attn.weight", "(1/3 g k) d"),
        ("key.bias", "c_attn.bias", "(1/3 g k)"),
        ("value.kernel", "c_attn.weight", "(2/3 g e) d"),
        ("value.bias", "c_attn.bias", "(2/3 g e)"),
        ("output.kernel", "c_proj.weight", "d (h e)"),
        ("output.bias", "c_proj.bias", "d"),
    ),
    "multi_head_attention": (
        ("query.kernel", "W_q.weight", "(h k) d"),
        ("query.bias", "W_q.bias", "(h k)"),
        ("key.kernel", "W_k.weight", "(g k) d"),
        ("key.bias", "W_k.bias", "(g k)"),
        ("value.kernel", "W_v.weight", "(g e) d"),
        ("value.bias", "W_v.bias", "(g e)"),
        ("output.kernel", "W_o.weight", "d (h e)"),
        ("output.bias", "W_o.bias", "d"),
    ),
    "feed_forward": (
        ("hidden.kernel", "w_1.weight", "f d"),
        ("hidden.bias", "w_1.bias", "f"),
        ("output.kernel", "w_2.weight", "d f"),
        ("output.bias", "w_2.bias", "d"),
    ),
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "self_attention_sublayer": attention_with_norm,
    "cross_attention_sublayer": attention_with_norm,
    "feed_forward_sublayer": (("feed_forward", ""), ("feed_forward_norm", "layer_norm")),
    "encoder_layer": (
        ("self_attention", "slf_attn.mha"),
        ("self_attention_norm", "slf_attn.layer_norm"),
        ("feed_forward", "pos_ffn"),
        ("feed_forward_norm", "pos_ffn.layer_norm"),
    ),
    "embedding": (("table", "weight", "v d"),),
    "token_encoder": (("source_embedding", "emb"), ("encoder.layers", "stack")),
    "logits": (("kernel", "proj.weight", "v d"), ("bias", "proj.bias", "v")),
}
first = {"return": lambda output, inputs: output[0]}
call = {
    "self_attention": {"x": "x_btd", "if": "causal"},
    "multi_head_attention": {"queries": "query_btd", "keys": "memory_bsd", "values": "memory_bsd", "valid_lens": "length_b"},
    "self_attention_sublayer": {"q": "x_btd", "k": "x_btd", "v": "x_btd", "lens": "length_b", **first},
    "cross_attention_sublayer": {"q": "x_btd", "k": "memory_bsd", "v": "memory_bsd", "lens": "length_b", **first},
    "feed_forward_sublayer": {"x": "x_btd"},
    "encoder_layer": {"x": "x_btd", "lens": "length_b"},
    "token_encoder": {"ids": "source", "lens": "source_length_b"},
    "logits": {"x": "x_btd", "return": lambda output, inputs: output.unflatten(0, inputs["x_btd"].shape[:2])},
    "scaled_dot_product_attention": {"query": "query_bthk", "key": "key_bsgk", "value": "value_bsge", "for": "b"},
}
config = CLASSIC | {
    "encoder_layers": 2,
    "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "attention_bias": True, "output_bias": True,
    "activation": "relu", "norm_placement": "post", "final_norm": False, "max_positions": 0, "segments": 0,
    "embedding_norm": False, "scale_embedding": True, "position_start": "row", "padding_id": 2,
}  # fmt: skip
