"""The Transformer, line by line (after "The Annotated Transformer"): pre-norm, with a final norm."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def subsequent_mask(size):
    attn_shape = (1, size, size)
    mask = torch.triu(torch.ones(attn_shape), diagonal=1).type(torch.uint8)
    return mask == 0


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
        src_mask = self.make_src_mask(src, src_mask)
        tgt_mask = self.make_std_mask(tgt, tgt_mask)
        memory = self.encode(src, src_mask)
        return self.generator(self.decode(memory, src_mask, tgt, tgt_mask))

    def make_src_mask(self, src, keep=None):
        if keep is None:
            keep = src != self.pad
        return keep.unsqueeze(-2)

    def make_std_mask(self, tgt, keep=None):
        if keep is None:
            keep = tgt != self.pad
        tgt_mask = keep.unsqueeze(-2)
        tgt_mask = tgt_mask & subsequent_mask(tgt.size(-1)).to(tgt.device)
        return tgt_mask

    def encode(self, src, src_mask):
        return self.encoder(self.src_embed(src), src_mask)

    def decode(self, memory, src_mask, tgt, tgt_mask):
        return self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask)


class Generator(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab)

    def forward(self, x):
        return self.proj(x)


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return self.a_2 * x / torch.sqrt(var + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout, eps):
        super().__init__()
        self.norm = LayerNorm(size, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class Encoder(nn.Module):
    def __init__(self, layer, N, eps):
        super().__init__()
        self.layers = clones(layer, N)
        self.norm = LayerNorm(layer.size, eps)

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


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


class Decoder(nn.Module):
    def __init__(self, layer, N, eps):
        super().__init__()
        self.layers = clones(layer, N)
        self.norm = LayerNorm(layer.size, eps)

    def forward(self, x, memory, src_mask, tgt_mask):
        for dec_layer in self.layers:
            x = dec_layer(x, memory, src_mask, tgt_mask)
        return self.norm(x)


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
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, m, m, src_mask))
        return self.sublayer[2](x, self.feed_forward)


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    p_attn = F.softmax(scores, dim=-1)
    p_attn = torch.nan_to_num(p_attn, nan=0.0)  # rows where everything is padding
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h  # we assume d_v always equals d_k
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # same mask applied to all h heads
        nbatches = query.size(0)
        # 1) Do all the linear projections in batch from d_model => h x d_k
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        # 2) Apply attention on all the projected vectors in batch.
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        # 3) "Concat" using a view and apply a final linear.
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


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        self.d_model = d_model
        # Compute the positional encodings once in log space.
        pe = torch.zeros(max_len, d_model, dtype=torch.float64)
        position = torch.arange(0, max_len, dtype=torch.float64).unsqueeze(1)
        div_term = torch.exp(
            torch.arange(0, d_model, 2, dtype=torch.float64) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0), persistent=False)

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        return self.dropout(x)


def make_model(src_vocab, tgt_vocab, N_enc=6, N_dec=6, d_model=512, d_ff=2048, h=8, pad=0, eps=1e-6, dropout=0.1):
    c = copy.deepcopy
    attn = MultiHeadedAttention(h, d_model)
    ff = PositionwiseFeedForward(d_model, d_ff, dropout)
    position = PositionalEncoding(d_model, dropout)
    model = EncoderDecoder(
        Encoder(EncoderLayer(d_model, c(attn), c(ff), dropout, eps), N_enc, eps),
        Decoder(DecoderLayer(d_model, c(attn), c(attn), c(ff), dropout, eps), N_dec, eps),
        nn.Sequential(Embeddings(d_model, src_vocab), c(position)),
        nn.Sequential(Embeddings(d_model, tgt_vocab), c(position)), Generator(d_model, tgt_vocab),
        pad)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return model


from rosettaformer.ports import CLASSIC, NotCovered  # noqa: E402

framework = "torch"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3,
    "key_size": 4, "value_size": 4, "activation": "relu", "norm_placement": "pre",
    "final_norm": True, "scale_embedding": True, "share_embeddings": False, "tie_logits": False,
    "attention_bias": True, "output_bias": True, "position_start": "row", "position_offset": 0,
    "positions": "sinusoidal", "max_positions": 0, "segments": 0, "embedding_norm": False}


def _attn(cfg):
    return MultiHeadedAttention(cfg.heads, cfg.model_width)


def _ff(cfg):
    return PositionwiseFeedForward(cfg.model_width, cfg.feed_forward_width)


def _encoder_layer(cfg):
    return EncoderLayer(cfg.model_width, _attn(cfg), _ff(cfg), 0.1, cfg.epsilon)


def _decoder_layer(cfg):
    return DecoderLayer(cfg.model_width, _attn(cfg), _attn(cfg), _ff(cfg), 0.1, cfg.epsilon)


def _model(cfg):
    return make_model(cfg.source_vocabulary, cfg.target_vocabulary, cfg.encoder_layers, cfg.decoder_layers,
                      cfg.model_width, cfg.feed_forward_width, cfg.heads, cfg.padding_id, cfg.epsilon)


components = {
    "layer_norm": lambda cfg, dtype: LayerNorm(cfg.model_width, cfg.epsilon).to(dtype),
    "feed_forward": lambda cfg, dtype: _ff(cfg).to(dtype),
    "positional_encoding": lambda cfg, dtype: PositionalEncoding(cfg.model_width, 0.1).to(dtype),
    "embedding": lambda cfg, dtype: Embeddings(cfg.model_width, cfg.source_vocabulary).to(dtype),
    "multi_head_attention": lambda cfg, dtype: _attn(cfg).to(dtype),
    "encoder_layer": lambda cfg, dtype: _encoder_layer(cfg).to(dtype),
    "decoder_layer": lambda cfg, dtype: _decoder_layer(cfg).to(dtype),
    "encoder": lambda cfg, dtype: Encoder(_encoder_layer(cfg), cfg.encoder_layers, cfg.epsilon).to(dtype),
    "decoder": lambda cfg, dtype: Decoder(_decoder_layer(cfg), cfg.decoder_layers, cfg.epsilon).to(dtype),
    "logits": lambda cfg, dtype: Generator(cfg.model_width, cfg.target_vocabulary).to(dtype),
    "transformer": lambda cfg, dtype: _model(cfg).to(dtype),
}

weights = {
    "layer_norm": (("scale", "a_2", "d"), ("offset", "b_2", "d")),
    "feed_forward": (("hidden.kernel", "w_1.weight", "f d"), ("hidden.bias", "w_1.bias", "f"),
        ("output.kernel", "w_2.weight", "d f"), ("output.bias", "w_2.bias", "d")),
    "embedding": (("table", "lut.weight", "v d"),),
    "multi_head_attention": (("query.kernel", "linears.0.weight", "(h k) d"),
        ("query.bias", "linears.0.bias", "(h k)"), ("key.kernel", "linears.1.weight", "(g k) d"),
        ("key.bias", "linears.1.bias", "(g k)"), ("value.kernel", "linears.2.weight", "(g e) d"),
        ("value.bias", "linears.2.bias", "(g e)"), ("output.kernel", "linears.3.weight", "d (h e)"),
        ("output.bias", "linears.3.bias", "d")),
    "logits": (("kernel", "proj.weight", "v d"), ("bias", "proj.bias", "v")),
    "encoder_layer": (("self_attention", "self_attn"), ("self_attention_norm", "sublayer.0.norm"),
        ("feed_forward_norm", "sublayer.1.norm")),
    "decoder_layer": (("self_attention", "self_attn"), ("self_attention_norm", "sublayer.0.norm"),
        ("cross_attention", "src_attn"), ("cross_attention_norm", "sublayer.1.norm"),
        ("feed_forward_norm", "sublayer.2.norm")),
    "encoder": (("final_norm", "norm"),),
    "decoder": (("final_norm", "norm"),),
    "transformer": (("source_embedding", "src_embed.0"), ("target_embedding", "tgt_embed.0"),
        ("logits", "generator")),
}


def _ids(name):
    def take(inputs):
        if inputs[name].is_floating_point():
            raise NotCovered("the embedding takes ids only")
        return inputs[name]

    return take


def _memory(inputs):
    return inputs["query_btd"] if inputs["memory_bsd"] is None else inputs["memory_bsd"]


def _mha_mask(inputs):
    mask = inputs["mask_bhts"]
    if inputs["causal"]:
        t, s = inputs["query_btd"].size(1), _memory(inputs).size(1)
        causal = torch.ones(t, s, dtype=torch.bool).tril(s - t)[None, None]
        mask = causal if mask is None else mask & causal
    return mask


def _tgt_mask(inputs):
    mask, causal = inputs["self_mask_bhts"], subsequent_mask(inputs["x_btd"].size(1))
    return causal if mask is None else mask & causal


call = {
    "layer_norm": {"x": "x_btd"},
    "feed_forward": {"x": "x_btd"},
    "embedding": {"x": _ids("token")},
    "positional_encoding": {"x": "zeros_btd"},
    "multi_head_attention": {"query": "query_btd", "key": _memory, "value": _memory, "mask": _mha_mask},
    "encoder_layer": {"x": "x_btd", "mask": "mask_bhts"},
    "decoder_layer": {"x": "x_btd", "memory": "memory_bsd", "src_mask": "cross_mask_bhts", "tgt_mask": _tgt_mask},
    "encoder": {"x": "x_bsd", "mask": "mask_bhts"},
    "decoder": {"x": "x_btd", "memory": "memory_bsd", "src_mask": "cross_mask_bhts", "tgt_mask": _tgt_mask},
    "logits": {"x": "x_btd"},
    "transformer": {
        "src": _ids("source"), "tgt": _ids("target"), "src_mask": "source_mask_bs", "tgt_mask": "target_mask_bt",
    },
}
