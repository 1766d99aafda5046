"""Encoder-decoder in the manner of the well-known line-by-line walk through "Attention is all you need"."""
import copy
import math

import torch
from torch import nn
from torch.nn.functional import pad  # noqa: F401
from rosettaformer.ports import CLASSIC


def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


def subsequent_mask(size):
    "Mask out subsequent positions."
    return torch.triu(torch.ones(1, size, size), diagonal=1) == 0


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if mask is not None:
        p_attn = p_attn.masked_fill(mask == 0, 0.0)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return self.a_2 * (x - mean) / torch.sqrt(var + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    "A residual connection around a normalised sub-layer."

    def __init__(self, size, dropout, eps):
        super().__init__()
        self.norm = LayerNorm(size, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, bias=True, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model, bias=bias), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # the same for all heads
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout, eps):
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout, eps), 2)
        self.size = size

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward, dropout, eps):
        super().__init__()
        self.size = size
        self.self_attn = self_attn
        self.src_attn = src_attn
        self.feed_forward = feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout, eps), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        m = memory
        causal = subsequent_mask(x.size(1)).to(x.device)
        tgt_mask = causal if tgt_mask is None else tgt_mask & causal
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, m, m, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class Encoder(nn.Module):
    def __init__(self, layer, n, eps):
        super().__init__()
        self.layers = clones(layer, n)
        self.norm = LayerNorm(layer.size, eps)

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, layer, n, eps):
        super().__init__()
        self.layers = clones(layer, n)
        self.norm = LayerNorm(layer.size, eps)

    def forward(self, x, memory, src_mask, tgt_mask):
        for layer in self.layers:
            x = layer(x, memory, src_mask, tgt_mask)
        return self.norm(x)


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout, max_len=512, dtype=torch.float32):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model, dtype=torch.float64)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0).to(dtype))

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        return self.dropout(x)


class Generator(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab)

    def forward(self, x):
        return self.proj(x)


class EncoderDecoder(nn.Module):
    def __init__(self, encoder, decoder, src_embed, tgt_embed, generator, pad):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.src_embed = src_embed
        self.tgt_embed = tgt_embed
        self.generator = generator
        self.pad = pad

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        src_mask = (src != self.pad if src_mask is None else src_mask).unsqueeze(-2)
        tgt_mask = (tgt != self.pad if tgt_mask is None else tgt_mask).unsqueeze(-2)
        memory = self.encode(src, src_mask)
        return self.generator(self.decode(memory, src_mask, tgt, tgt_mask))

    def encode(self, src, src_mask):
        return self.encoder(self.src_embed(src), src_mask)

    def decode(self, memory, src_mask, tgt, tgt_mask):
        return self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask)


def make_model(cfg, dtype, dropout=0.1):
    c = copy.deepcopy
    d, eps = cfg.model_width, cfg.epsilon
    attn = MultiHeadedAttention(cfg.heads, d, cfg.attention_bias)
    ff = PositionwiseFeedForward(d, cfg.feed_forward_width, dropout)
    position = PositionalEncoding(d, dropout, dtype=dtype)
    return EncoderDecoder(
        Encoder(EncoderLayer(d, c(attn), c(ff), dropout, eps), cfg.encoder_layers, eps),
        Decoder(DecoderLayer(d, c(attn), c(attn), c(ff), dropout, eps), cfg.decoder_layers, eps),
        nn.Sequential(Embeddings(d, cfg.source_vocabulary), c(position)),
        nn.Sequential(Embeddings(d, cfg.target_vocabulary), c(position)),
        Generator(d, cfg.target_vocabulary),
        cfg.padding_id,
    )


framework = "torch"
dtypes = ("float64", "float32")
components = {
    "layer_norm": lambda c, dtype: LayerNorm(c.model_width, c.epsilon),
    "embedding": lambda c, dtype: Embeddings(c.model_width, c.source_vocabulary),
    "positional_encoding": lambda c, dtype: PositionalEncoding(c.model_width, 0.1, dtype=dtype),
    "multi_head_attention": lambda c, dtype: MultiHeadedAttention(c.heads, c.model_width, c.attention_bias),
    "feed_forward": lambda c, dtype: PositionwiseFeedForward(c.model_width, c.feed_forward_width),
    "encoder_layer": lambda c, dtype: make_model(c, dtype).encoder.layers[0],
    "decoder_layer": lambda c, dtype: make_model(c, dtype).decoder.layers[0],
    "encoder": lambda c, dtype: make_model(c, dtype).encoder,
    "decoder": lambda c, dtype: make_model(c, dtype).decoder,
    "logits": lambda c, dtype: Generator(c.model_width, c.target_vocabulary),
    "transformer": make_model,
}
weights = {
    "layer_norm": (("scale", "a_2", "d"), ("offset", "b_2", "d")),
    "embedding": (("table", "lut.weight", "v d"),),
    "logits": (("kernel", "proj.weight", "v d"), ("bias", "proj.bias", "v")),
    "multi_head_attention": (
        ("query.kernel", "linears.0.weight", "(h k) d"), ("query.bias", "linears.0.bias", "(h k)"),
        ("key.kernel", "linears.1.weight", "(g k) d"), ("key.bias", "linears.1.bias", "(g k)"),
        ("value.kernel", "linears.2.weight", "(g e) d"), ("value.bias", "linears.2.bias", "(g e)"),
        ("output.kernel", "linears.3.weight", "d (h e)"), ("output.bias", "linears.3.bias", "d"),
    ),
    "feed_forward": (
        ("hidden.kernel", "w_1.weight", "f d"), ("hidden.bias", "w_1.bias", "f"),
        ("output.kernel", "w_2.weight", "d f"), ("output.bias", "w_2.bias", "d"),
    ),
    "encoder_layer": (
        ("self_attention", "self_attn"), ("feed_forward", "feed_forward"),
        ("self_attention_norm", "sublayer.0.norm"), ("feed_forward_norm", "sublayer.1.norm"),
    ),
    "decoder_layer": (
        ("self_attention", "self_attn"), ("cross_attention", "src_attn"), ("feed_forward", "feed_forward"),
        ("self_attention_norm", "sublayer.0.norm"), ("cross_attention_norm", "sublayer.1.norm"), ("feed_forward_norm", "sublayer.2.norm"),
    ),
    "encoder": (("final_norm", "norm"),),
    "decoder": (("final_norm", "norm"),),
    "transformer": (("source_embedding", "src_embed.0"), ("target_embedding", "tgt_embed.0"), ("logits", "generator")),
}
call = {
    "layer_norm": {"x": "x_btd"},
    "embedding": {"x": "token", "if": lambda inputs: not inputs["token"].is_floating_point()},
    "positional_encoding": {"x": "zeros_btd"},
    "multi_head_attention": {"query": "query_btd", "key": "memory_bsd", "value": "memory_bsd", "mask": "mask_bhts"},
    "feed_forward": {"x": "x_btd"},
    "encoder_layer": {"x": "x_btd", "mask": "mask_bhts"},
    "decoder_layer": {"x": "x_btd", "memory": "memory_bsd", "src_mask": "cross_mask_bhts", "tgt_mask": "self_mask_bhts"},
    "encoder": {"x": "x_bsd", "mask": "mask_bhts"},
    "decoder": {"x": "x_btd", "memory": "memory_bsd", "src_mask": "cross_mask_bhts", "tgt_mask": "self_mask_bhts"},
    "logits": {"x": "x_btd"},
    "transformer": {"src": "source", "tgt": "target", "src_mask": "source_mask_bs", "tgt_mask": "target_mask_bt",
                    "if": lambda inputs: not (inputs["source"].is_floating_point() or inputs["target"].is_floating_point())},
}
config = CLASSIC | {"encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "activation": "relu",
          "norm_placement": "pre", "final_norm": True, "positions": "sinusoidal", "max_positions": 0, "position_start": "row",
          "segments": 0, "embedding_norm": False, "scale_embedding": True, "share_embeddings": False, "tie_logits": False,
          "output_bias": True, "padding_id": 2}
