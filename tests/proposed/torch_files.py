"""A model that takes its device and special ids; fills of -10000, and an encoding without a batch axis."""

import math

import torch
from torch import nn


class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-12):
        super().__init__()
        self.gamma, self.beta, self.eps = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model)), eps

    def forward(self, x):
        var = x.var(-1, unbiased=False, keepdim=True)
        return self.gamma * (x - x.mean(-1, keepdim=True)) / torch.sqrt(var + self.eps) + self.beta


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q, self.w_k, self.w_v, self.w_concat = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x):
        return x.view(*x.shape[:2], self.n_head, -1).transpose(1, 2)

    def forward(self, q, k, v, mask=None):
        q, k, v = self.split(self.w_q(q)), self.split(self.w_k(k)), self.split(self.w_v(v))
        score = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000)
        out = score.softmax(-1) @ v
        return self.w_concat(out.transpose(1, 2).flatten(2))


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, hidden, drop_prob=0.1):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(d_model, hidden), nn.Linear(hidden, d_model)

    def forward(self, x):
        return self.linear2(torch.relu(self.linear1(x)))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, ffn_hidden, n_head, drop_prob):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_head)
        self.norm1, self.ffn, self.norm2 = LayerNorm(d_model), PositionwiseFeedForward(d_model, ffn_hidden, drop_prob), LayerNorm(d_model)

    def forward(self, x, src_mask):
        x = self.norm1(self.attention(x, x, x, src_mask) + x)
        return self.norm2(self.ffn(x) + x)


class DecoderLayer(nn.Module):
    def __init__(self, d_model, ffn_hidden, n_head, drop_prob):
        super().__init__()
        self.self_attention, self.norm1 = MultiHeadAttention(d_model, n_head), LayerNorm(d_model)
        self.enc_dec_attention, self.norm2 = MultiHeadAttention(d_model, n_head), LayerNorm(d_model)
        self.ffn, self.norm3 = PositionwiseFeedForward(d_model, ffn_hidden, drop_prob), LayerNorm(d_model)

    def forward(self, dec, enc, trg_mask, src_mask):
        x = self.norm1(self.self_attention(dec, dec, dec, trg_mask) + dec)
        x = self.norm2(self.enc_dec_attention(x, enc, enc, src_mask) + x)
        return self.norm3(self.ffn(x) + x)


class PositionalEncoding(nn.Module):
    """Returns the rows of the table, without a batch axis."""

    def __init__(self, d_model, max_len, device):
        super().__init__()
        angle = torch.arange(max_len, device=device)[:, None] / 10000 ** (torch.arange(0, d_model, 2, device=device) / d_model)
        self.encoding = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d_model]

    def forward(self, x):
        _, seq_len = x.size()
        return self.encoding[:seq_len]


class AddedPositions(PositionalEncoding):
    """Adds the rows to its input."""

    def forward(self, x):
        return x + self.encoding[: x.size(1)]


class TransformerEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model, max_len, device):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, d_model, padding_idx=1)
        self.pos_emb = PositionalEncoding(d_model, max_len, device)

    def forward(self, x):
        return self.tok_emb(x) + self.pos_emb(x)


class Encoder(nn.Module):
    def __init__(self, enc_voc_size, max_len, d_model, ffn_hidden, n_head, n_layers, drop_prob, device):
        super().__init__()
        self.emb = TransformerEmbedding(enc_voc_size, d_model, max_len, device)
        self.layers = nn.ModuleList([EncoderLayer(d_model, ffn_hidden, n_head, drop_prob) for _ in range(n_layers)])

    def forward(self, x, src_mask):
        x = self.emb(x)
        for layer in self.layers:
            x = layer(x, src_mask)
        return x


class Decoder(nn.Module):
    def __init__(self, dec_voc_size, max_len, d_model, ffn_hidden, n_head, n_layers, drop_prob, device):
        super().__init__()
        self.emb = TransformerEmbedding(dec_voc_size, d_model, max_len, device)
        self.layers = nn.ModuleList([DecoderLayer(d_model, ffn_hidden, n_head, drop_prob) for _ in range(n_layers)])
        self.linear = nn.Linear(d_model, dec_voc_size)

    def forward(self, trg, enc_src, trg_mask, src_mask):
        x = self.emb(trg)
        for layer in self.layers:
            x = layer(x, enc_src, trg_mask, src_mask)
        return self.linear(x)


class Transformer(nn.Module):
    """The padding of the target hides its queries, not its keys."""

    def __init__(
        self, src_pad_idx, trg_pad_idx, trg_sos_idx, enc_voc_size, dec_voc_size, d_model, n_head, max_len, ffn_hidden, n_layers, drop_prob,
        device,
    ):  # fmt: skip
        super().__init__()
        self.src_pad_idx, self.trg_pad_idx = src_pad_idx, trg_pad_idx
        sizes = max_len, d_model, ffn_hidden, n_head, n_layers, drop_prob, device
        self.encoder, self.decoder = Encoder(enc_voc_size, *sizes), Decoder(dec_voc_size, *sizes)

    def forward(self, src, trg):
        src_mask = (src != self.src_pad_idx)[:, None, None]
        earlier = torch.ones(trg.size(1), trg.size(1), dtype=torch.bool).tril()
        trg_mask = (trg != self.trg_pad_idx)[:, None, :, None] & earlier
        return self.decoder(trg, self.encoder(src, src_mask), trg_mask, src_mask)
