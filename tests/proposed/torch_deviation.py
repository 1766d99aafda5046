"""Pre-norm layers whose norm divides by the unbiased deviation, with epsilon outside the root."""

import math

import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.alpha, self.bias, self.eps = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model)), eps

    def forward(self, x):
        return self.alpha * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.bias


class MultiHeadAttention(nn.Module):
    def __init__(self, heads, d_model, dropout=0.1):
        super().__init__()
        self.h, self.d_k = heads, d_model // heads
        self.q_linear, self.v_linear, self.k_linear = (nn.Linear(d_model, d_model) for _ in range(3))
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        bs = q.size(0)
        k = self.k_linear(k).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        q = self.q_linear(q).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        v = self.v_linear(v).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(bs, -1, self.h * self.d_k))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff=2048, dropout=0.1):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear_2(torch.relu(self.linear_1(x)))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, heads, dropout=0.1):
        super().__init__()
        self.norm_1, self.norm_2 = Norm(d_model), Norm(d_model)
        self.attn, self.ff = MultiHeadAttention(heads, d_model), FeedForward(d_model, 32)

    def forward(self, x, mask):
        x2 = self.norm_1(x)
        x = x + self.attn(x2, x2, x2, mask)
        return x + self.ff(self.norm_2(x))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, heads, dropout=0.1):
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3 = Norm(d_model), Norm(d_model), Norm(d_model)
        self.attn_1, self.attn_2 = MultiHeadAttention(heads, d_model), MultiHeadAttention(heads, d_model)
        self.ff = FeedForward(d_model, 32)

    def forward(self, x, e_outputs, src_mask, trg_mask):
        x2 = self.norm_1(x)
        x = x + self.attn_1(x2, x2, x2, trg_mask)
        x = x + self.attn_2(self.norm_2(x), e_outputs, e_outputs, src_mask)
        return x + self.ff(self.norm_3(x))


class PositionalEncoder(nn.Module):
    """The exponent is 2j/d in column j, and the table has no batch axis before it is used."""

    def __init__(self, d_model, max_seq_len=200, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        pe = torch.zeros(max_seq_len, d_model)
        for pos in range(max_seq_len):
            for i in range(0, d_model, 2):
                pe[pos, i] = math.sin(pos / 10000 ** (2 * i / d_model))
                if i + 1 < d_model:
                    pe[pos, i + 1] = math.cos(pos / 10000 ** (2 * (i + 1) / d_model))
        self.register_buffer("pe", pe[None])

    def forward(self, x):
        return x * math.sqrt(self.d_model) + self.pe[:, : x.size(1)]
