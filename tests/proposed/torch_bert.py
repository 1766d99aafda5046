"""BERT's block with numbered linear layers, tanh-GELU written out, and pre-norm by the unbiased deviation."""

import math

import torch
from torch import nn


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2, self.eps = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features)), eps

    def forward(self, x):
        return self.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.b_2


class GELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linear_layers = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(3)])
        self.output_linear = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, mask=None):
        query, key, value = (
            layer(x).view(x.size(0), -1, self.h, self.d_k).transpose(1, 2)
            for layer, x in zip(self.linear_layers, (query, key, value), strict=True)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.output_linear((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w_1, self.w_2, self.activation = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model), GELU()

    def forward(self, x):
        return self.w_2(self.activation(self.w_1(x)))


class SublayerConnection(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = LayerNorm(size)

    def forward(self, x, sublayer):
        return x + sublayer(self.norm(x))


class TransformerBlock(nn.Module):
    def __init__(self, hidden, attn_heads, feed_forward_hidden, dropout):
        super().__init__()
        self.attention, self.feed_forward = MultiHeadedAttention(attn_heads, hidden), PositionwiseFeedForward(hidden, feed_forward_hidden)
        self.input_sublayer, self.output_sublayer = SublayerConnection(hidden), SublayerConnection(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.input_sublayer(x, lambda y: self.attention(y, y, y, mask=mask))
        return self.dropout(self.output_sublayer(x, self.feed_forward))
