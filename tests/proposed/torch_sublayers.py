"""Sub-layers that contain their residual and their norm; separate key and value sizes; tables tied after construction; scaled logits
with all positions of all rows as one axis."""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs, self.w_ks = (nn.Linear(d_model, n_head * d_k, bias=False) for _ in range(2))
        self.w_vs, self.fc = nn.Linear(d_model, n_head * d_v, bias=False), nn.Linear(n_head * d_v, d_model, bias=False)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q, k, v, mask=None):
        residual = q
        q, k = self.w_qs(q).unflatten(-1, (self.n_head, -1)), self.w_ks(k).unflatten(-1, (self.n_head, -1))
        v = self.w_vs(v).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        attn = (q.transpose(1, 2) / self.d_k**0.5) @ k.permute(0, 2, 3, 1)
        if mask is not None:
            attn = attn.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        attn = attn.softmax(-1)
        return self.layer_norm(self.fc((attn @ v).transpose(1, 2).flatten(2)) + residual), attn


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_in, d_hid, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_in, d_hid), nn.Linear(d_hid, d_in)
        self.layer_norm = nn.LayerNorm(d_in, eps=1e-6)

    def forward(self, x):
        return self.layer_norm(self.w_2(self.w_1(x).relu()) + x)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, d_inner, n_head, d_k, d_v, dropout=0.1):
        super().__init__()
        self.slf_attn = MultiHeadAttention(n_head, d_model, d_k, d_v, dropout)
        self.pos_ffn = PositionwiseFeedForward(d_model, d_inner, dropout)

    def forward(self, enc_input, slf_attn_mask=None):
        out, attn = self.slf_attn(enc_input, enc_input, enc_input, mask=slf_attn_mask)
        return self.pos_ffn(out), attn


class DecoderLayer(nn.Module):
    def __init__(self, d_model, d_inner, n_head, d_k, d_v, dropout=0.1):
        super().__init__()
        self.slf_attn, self.enc_attn = (MultiHeadAttention(n_head, d_model, d_k, d_v, dropout) for _ in range(2))
        self.pos_ffn = PositionwiseFeedForward(d_model, d_inner, dropout)

    def forward(self, dec_input, enc_output, slf_attn_mask=None, dec_enc_attn_mask=None):
        out, _ = self.slf_attn(dec_input, dec_input, dec_input, mask=slf_attn_mask)
        out, _ = self.enc_attn(out, enc_output, enc_output, mask=dec_enc_attn_mask)
        return self.pos_ffn(out)


class PositionalEncoding(nn.Module):
    def __init__(self, d_hid, n_position=200):
        super().__init__()
        angle = torch.arange(n_position)[:, None] / 10000 ** (torch.arange(0, d_hid, 2) / d_hid)
        self.register_buffer("pos_table", torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[None, :, :d_hid])

    def forward(self, x):
        return x + self.pos_table[:, : x.size(1)]


class Stack(nn.Module):
    def __init__(self, n_vocab, d_word_vec, n_layers, layer, d_model, d_inner, n_head, d_k, d_v, n_position):
        super().__init__()
        self.word_emb = nn.Embedding(n_vocab, d_word_vec)
        self.position_enc = PositionalEncoding(d_word_vec, n_position)
        self.layer_stack = nn.ModuleList([layer(d_model, d_inner, n_head, d_k, d_v) for _ in range(n_layers)])
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, ids, *given):
        x = self.layer_norm(self.position_enc(self.word_emb(ids)))
        for layer in self.layer_stack:
            x = layer(x, *given)
            x = x[0] if isinstance(x, tuple) else x
        return x


class Transformer(nn.Module):
    def __init__(
        self, n_src_vocab, n_trg_vocab, src_pad_idx, trg_pad_idx, d_word_vec=12, d_model=12, d_inner=2048, n_layers=6, n_head=8, d_k=64,
        d_v=64, dropout=0.1, n_position=200,
    ):  # fmt: skip
        super().__init__()
        assert d_model == d_word_vec
        self.src_pad_idx, self.trg_pad_idx, self.d_model = src_pad_idx, trg_pad_idx, d_model
        self.encoder = Stack(n_src_vocab, d_word_vec, n_layers, EncoderLayer, d_model, d_inner, n_head, d_k, d_v, n_position)
        self.decoder = Stack(n_trg_vocab, d_word_vec, n_layers, DecoderLayer, d_model, d_inner, n_head, d_k, d_v, n_position)
        self.trg_word_prj = nn.Linear(d_model, n_trg_vocab, bias=False)
        self.trg_word_prj.weight = self.decoder.word_emb.weight
        self.encoder.word_emb.weight = self.decoder.word_emb.weight

    def forward(self, src_seq, trg_seq):
        src_mask = (src_seq != self.src_pad_idx).unsqueeze(-2)
        trg_mask = (trg_seq != self.trg_pad_idx).unsqueeze(-2) & torch.ones(trg_seq.size(1), trg_seq.size(1), dtype=torch.bool).tril()
        x = self.decoder(trg_seq, self.encoder(src_seq, src_mask), trg_mask, src_mask)
        seq_logit = self.trg_word_prj(x) * self.d_model**-0.5
        return seq_logit.view(-1, seq_logit.size(2))
