"""Models around `torch.nn.Transformer` and `torch.nn.MultiheadAttention`."""

import math

import torch
from torch import nn


class Seq2Seq(nn.Module):
    def __init__(
        self, num_encoder_layers, num_decoder_layers, emb_size, nhead, src_vocab_size, tgt_vocab_size, dim_feedforward=512, dropout=0.1
    ):
        super().__init__()
        sizes = emb_size, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward
        self.transformer = nn.Transformer(*sizes, dropout, batch_first=True)
        self.generator = nn.Linear(emb_size, tgt_vocab_size)
        self.src_tok_emb = nn.Embedding(src_vocab_size, emb_size)
        self.tgt_tok_emb = nn.Embedding(tgt_vocab_size, emb_size)
        self.emb_size = emb_size

    def pos(self, x):
        p = torch.arange(x.size(1))[:, None] * torch.exp(-torch.arange(0, self.emb_size, 2) * math.log(10000) / self.emb_size)
        return torch.stack([p.sin(), p.cos()], -1).flatten(1).to(x.dtype)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, memory_key_padding_mask):
        s = self.src_tok_emb(src) * math.sqrt(self.emb_size)
        t = self.tgt_tok_emb(trg) * math.sqrt(self.emb_size)
        out = self.transformer(
            s + self.pos(s), t + self.pos(t), src_mask, tgt_mask, None, src_padding_mask, tgt_padding_mask, memory_key_padding_mask
        )
        return self.generator(out)


class Layer(nn.Module):
    def __init__(self, embed_dim, num_heads, ff_dim):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.linear1 = nn.Linear(embed_dim, ff_dim)
        self.linear2 = nn.Linear(ff_dim, embed_dim)
        self.ln1 = nn.LayerNorm(embed_dim)
        self.ln2 = nn.LayerNorm(embed_dim)

    def forward(self, x, key_padding_mask=None):
        y = self.ln1(x)
        x = x + self.attention(y, y, y, key_padding_mask=key_padding_mask, need_weights=False)[0]
        return x + self.linear2(torch.nn.functional.gelu(self.linear1(self.ln2(x))))
