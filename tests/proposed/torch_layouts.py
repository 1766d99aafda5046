"""Other divisions of a model: self-attention in one module, an encoder and a decoder on token ids, numbers of real keys instead of masks,
one kernel for all heads, rows without a batch, all positions of all rows as one axis."""

import math

import torch
from torch import nn


class MultiheadAttention(nn.Module):
    """One sequence with its mask; each head's query, key and value are adjacent."""

    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj, self.o_proj = nn.Linear(input_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None, return_attention=False):
        q, k, v = self.qkv_proj(x).unflatten(-1, (self.num_heads, -1)).permute(0, 2, 1, 3).chunk(3, dim=-1)
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits.masked_fill(mask == 0, -9e15)
        attention = logits.softmax(-1)
        output = self.o_proj((attention @ v).permute(0, 2, 1, 3).flatten(2))
        return (output, attention) if return_attention else output


class SharedAttention(nn.Module):
    """One kernel for all heads."""

    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads, size = heads, embed_size // heads
        self.values, self.keys, self.queries = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask):
        v, k, q = (x.unflatten(-1, (self.heads, -1)) for x in (values, keys, query))
        energy = torch.einsum("nqhd,nkhd->nhqk", self.queries(q), self.keys(k)) / q.size(-1) ** 0.5
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        return self.fc_out(torch.einsum("nhql,nlhd->nqhd", energy.softmax(-1), self.values(v)).flatten(2))


class SharedBlock(nn.Module):
    """A layer that passes one input as all three arguments of a `SharedAttention` without biases."""

    def __init__(self, embed_size, heads, dropout, forward_expansion):
        super().__init__()
        self.attention = SharedAttention(embed_size, heads)
        self.attention.fc_out = nn.Linear(embed_size, embed_size, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(embed_size), nn.LayerNorm(embed_size)
        hidden = forward_expansion * embed_size
        self.feed_forward = nn.Sequential(nn.Linear(embed_size, hidden), nn.ReLU(), nn.Linear(hidden, embed_size))

    def forward(self, value, key, query, mask):
        x = self.norm1(self.attention(value, key, query, mask) + query)
        return self.norm2(self.feed_forward(x) + x)


def masked_softmax(scores, valid_lens):
    if valid_lens is None:
        return scores.softmax(-1)
    lens = torch.repeat_interleave(valid_lens, scores.shape[1]) if valid_lens.dim() == 1 else valid_lens.reshape(-1)
    flat = scores.reshape(-1, scores.shape[-1])
    real = torch.arange(flat.shape[1], dtype=torch.float32)[None, :] < lens[:, None]
    return flat.masked_fill(~real, -1e6).reshape(scores.shape).softmax(-1)


class CountedAttention(nn.Module):
    """Takes the number of real keys instead of a mask."""

    def __init__(self, key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads, self.dropout = num_heads, nn.Dropout(dropout)
        self.W_q, self.W_k = nn.Linear(query_size, num_hiddens, bias), nn.Linear(key_size, num_hiddens, bias)
        self.W_v, self.W_o = nn.Linear(value_size, num_hiddens, bias), nn.Linear(num_hiddens, num_hiddens, bias)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).flatten(0, 1)

    def forward(self, queries, keys, values, valid_lens):
        q, k, v = self.split(self.W_q(queries)), self.split(self.W_k(keys)), self.split(self.W_v(values))
        if valid_lens is not None:
            valid_lens = torch.repeat_interleave(valid_lens, self.num_heads, dim=0)
        self.attention_weights = masked_softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), valid_lens)
        output = torch.bmm(self.dropout(self.attention_weights), v)
        return self.W_o(output.unflatten(0, (-1, self.num_heads)).transpose(1, 2).flatten(2))


class CountedBlock(nn.Module):
    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout, use_bias=False):
        super().__init__()
        self.attention = CountedAttention(num_hiddens, num_hiddens, num_hiddens, num_hiddens, num_heads, dropout, use_bias)
        self.ln1, self.ln2 = nn.LayerNorm(num_hiddens), nn.LayerNorm(num_hiddens)
        self.ffn = nn.Sequential(nn.Linear(num_hiddens, ffn_num_hiddens), nn.ReLU(), nn.Linear(ffn_num_hiddens, num_hiddens))

    def forward(self, X, valid_lens):
        Y = self.ln1(self.attention(X, X, X, valid_lens) + X)
        return self.ln2(self.ffn(Y) + Y)


class CountedEncoder(nn.Module):
    """Maps token ids to vectors."""

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_blks, dropout, use_bias=False):
        super().__init__()
        self.num_hiddens, self.embedding = num_hiddens, nn.Embedding(vocab_size, num_hiddens)
        self.blks = nn.Sequential(*[CountedBlock(num_hiddens, ffn_num_hiddens, num_heads, dropout, use_bias) for _ in range(num_blks)])
        angle = torch.arange(1000)[:, None] / 10000 ** (torch.arange(0, num_hiddens, 2, dtype=torch.float64) / num_hiddens)
        self.P = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[None]

    def forward(self, X, valid_lens):
        X = self.embedding(X) * math.sqrt(self.num_hiddens)
        X = X + self.P[:, : X.shape[1]].to(X.dtype)
        for blk in self.blks:
            X = blk(X, valid_lens)
        return X


class RowAttention(nn.Module):
    """Takes one row, without a batch."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.qkv, self.proj = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        length, width = x.shape
        q, k, v = self.qkv(x).view(length, 3, self.num_heads, width // self.num_heads).permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) / (width // self.num_heads) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.proj((scores.softmax(-1) @ v).transpose(0, 1).reshape(length, width))


class FlatLogits(nn.Module):
    """Flattens all positions of all rows into one axis."""

    def __init__(self, d_model, trg_vocab_size):
        super().__init__()
        self.linear = nn.Linear(d_model, trg_vocab_size)

    def forward(self, x):
        return self.linear(x).view(-1, self.linear.out_features)


class RequiredCounts(CountedAttention):
    """Requires the numbers of real keys."""

    def forward(self, queries, keys, values, valid_lens):
        return super().forward(queries, keys, values, valid_lens.long())


class Headless(nn.Module):
    """A decoder without its head: a causal mask, from ids to vectors."""

    def __init__(self, vocab_size, d_model, num_heads, d_ff, num_layers):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model)
        layer = nn.TransformerEncoderLayer(d_model, num_heads, d_ff, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.emb(ids), torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).triu(1))


class Odd(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.kernel = nn.Parameter(torch.ones(d_model, 7, 9))

    def forward(self, x):
        return x
