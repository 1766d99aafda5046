"""A tutorial's Transformer in torch, with names and arguments of its own: all of its components are judged from this one file."""

import math

import torch
from torch import nn

from rosettaformer.ports import CLASSIC, NotCovered


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.a_2 * (x - mean) / torch.sqrt(variance + self.eps) + self.b_2


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=512, dtype=torch.float32):
        super().__init__()
        position = torch.arange(max_len, dtype=torch.float64).unsqueeze(1)
        rate = 10000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        pe = torch.zeros(max_len, d_model, dtype=torch.float64)
        pe[:, 0::2] = torch.sin(position * rate)
        pe[:, 1::2] = torch.cos(position * rate)
        self.register_buffer("pe", pe.unsqueeze(0).to(dtype))

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class Embeddings(nn.Module):
    def __init__(self, vocab, d_model):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model)


class Attention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q, self.w_k, self.w_v, self.fc = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, k, q, v, mask=None):
        b, h = q.size(0), self.n_head
        q, k, v = (layer(x).view(b, x.size(1), h, -1).transpose(1, 2) for layer, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        score = q @ k.transpose(2, 3) / math.sqrt(q.size(-1))
        if mask is not None:
            score = score.masked_fill(mask == 0, -math.inf)
        weight = torch.softmax(score, dim=-1)
        if mask is not None:
            weight = weight.masked_fill(mask == 0, 0)
        return self.fc((weight @ v).transpose(1, 2).flatten(2))


class PositionwiseFeedForward(nn.Module):
    """Two convolutions over one position each."""

    def __init__(self, d_model, hidden, drop_prob=0.1):
        super().__init__()
        self.conv1 = nn.Conv1d(d_model, hidden, 1)
        self.conv2 = nn.Conv1d(hidden, d_model, 1)
        self.dropout = nn.Dropout(drop_prob)

    def forward(self, x):
        return self.conv2(self.dropout(torch.relu(self.conv1(x.transpose(1, 2))))).transpose(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, hidden, n_head, eps):
        super().__init__()
        self.attention = Attention(d_model, n_head)
        self.ffn = PositionwiseFeedForward(d_model, hidden)
        self.norm1, self.norm2 = LayerNorm(d_model, eps), LayerNorm(d_model, eps)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, src_mask):
        x = self.norm1(x + self.dropout(self.attention(k=x, q=x, v=x, mask=src_mask)))
        return self.norm2(x + self.dropout(self.ffn(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, hidden, n_head, eps):
        super().__init__()
        self.self_attention, self.enc_dec_attention = Attention(d_model, n_head), Attention(d_model, n_head)
        self.ffn = PositionwiseFeedForward(d_model, hidden)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(d_model, eps) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, dec, enc, trg_mask, src_mask):
        x = self.norm1(dec + self.dropout(self.self_attention(k=dec, q=dec, v=dec, mask=trg_mask)))
        x = self.norm2(x + self.dropout(self.enc_dec_attention(k=enc, q=x, v=enc, mask=src_mask)))
        return self.norm3(x + self.dropout(self.ffn(x)))


class Transformer(nn.Module):
    def __init__(self, src_vocab, trg_vocab, pad, d_model, hidden, n_head, enc_layers, dec_layers, eps, dtype):
        super().__init__()
        self.pad = pad
        self.src_embed, self.trg_embed = Embeddings(src_vocab, d_model), Embeddings(trg_vocab, d_model)
        self.pos = PositionalEncoding(d_model, dtype=dtype)
        self.enc = nn.ModuleList(EncoderLayer(d_model, hidden, n_head, eps) for _ in range(enc_layers))
        self.dec = nn.ModuleList(DecoderLayer(d_model, hidden, n_head, eps) for _ in range(dec_layers))
        self.linear = nn.Linear(d_model, trg_vocab)
        self.dropout = nn.Dropout(0.1)

    def forward(self, src, trg):
        src_mask = (src != self.pad)[:, None, None, :]
        trg_mask = causal(trg.size(1), trg.device) & (trg != self.pad)[:, None, None, :]
        x, y = (self.dropout(self.pos(embed(ids))) for embed, ids in ((self.src_embed, src), (self.trg_embed, trg)))
        for layer in self.enc:
            x = layer(x, src_mask)
        for layer in self.dec:
            y = layer(y, x, trg_mask, src_mask)
        return self.linear(y)


def causal(length, device=None):
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


# --- the port -------------------------------------------------------------------------------------------------------------

framework = "torch"
dtypes = ("float64", "float32")

components = {
    "layer_norm": lambda c, dtype: LayerNorm(c.model_width, c.epsilon),
    "positional_encoding": lambda c, dtype: PositionalEncoding(c.model_width, dtype=dtype),
    "embedding": lambda c, dtype: Embeddings(c.source_vocabulary, c.model_width),
    "multi_head_attention": lambda c, dtype: Attention(c.model_width, c.heads),
    "feed_forward": lambda c, dtype: PositionwiseFeedForward(c.model_width, c.feed_forward_width),
    "encoder_layer": lambda c, dtype: EncoderLayer(c.model_width, c.feed_forward_width, c.heads, c.epsilon),
    "decoder_layer": lambda c, dtype: DecoderLayer(c.model_width, c.feed_forward_width, c.heads, c.epsilon),
    "logits": lambda c, dtype: nn.Linear(c.model_width, c.target_vocabulary),
    "transformer": lambda c, dtype: Transformer(
        c.source_vocabulary, c.target_vocabulary, c.padding_id, c.model_width, c.feed_forward_width, c.heads,
        c.encoder_layers, c.decoder_layers, c.epsilon, dtype,
    ),
}  # fmt: skip

weights = {
    "layer_norm": (("scale", "a_2", "d"), ("offset", "b_2", "d")),
    "embedding": (("table", "lut.weight", "v d"),),
    "multi_head_attention": (
        ("query.kernel", "w_q.weight", "(h k) d"),
        ("query.bias", "w_q.bias", "(h k)"),
        ("key.kernel", "w_k.weight", "(g k) d"),
        ("key.bias", "w_k.bias", "(g k)"),
        ("value.kernel", "w_v.weight", "(g e) d"),
        ("value.bias", "w_v.bias", "(g e)"),
        ("output.kernel", "fc.weight", "d (h e)"),
        ("output.bias", "fc.bias", "d"),
    ),
    "feed_forward": (
        ("hidden.kernel", "conv1.weight", "f d 1"),
        ("hidden.bias", "conv1.bias", "f"),
        ("output.kernel", "conv2.weight", "d f 1"),
        ("output.bias", "conv2.bias", "d"),
    ),
    "encoder_layer": (
        ("self_attention", "attention"),
        ("feed_forward", "ffn"),
        ("self_attention_norm", "norm1"),
        ("feed_forward_norm", "norm2"),
    ),
    "decoder_layer": (
        ("cross_attention", "enc_dec_attention"),
        ("feed_forward", "ffn"),
        ("self_attention_norm", "norm1"),
        ("cross_attention_norm", "norm2"),
        ("feed_forward_norm", "norm3"),
    ),
    "logits": (("kernel", "weight", "v d"), ("bias", "bias", "v")),
    "transformer": (
        ("source_embedding", "src_embed"),
        ("target_embedding", "trg_embed"),
        ("encoder.positional_encoding", "pos"),
        ("decoder.positional_encoding", "pos"),
        ("encoder.layers", "enc"),
        ("decoder.layers", "dec"),
        ("logits", "linear"),
    ),
}


def attention_mask(inputs):
    """The mask of a case, and where it is causal the keys until the query's own."""
    mask, query, key = inputs["mask_bhts"], inputs["query_btd"], inputs["memory_bsd"]
    if not inputs["causal"]:
        return mask
    until = torch.ones(query.size(1), key.size(1), dtype=torch.bool).tril(key.size(1) - query.size(1))
    return until if mask is None else until & mask


def decoder_mask(inputs):
    mask, until = inputs["self_mask_bhts"], causal(inputs["x_btd"].size(1))
    return until if mask is None else until & mask


def ids(name):
    """The input of that name, which must be token ids."""

    def taken(inputs):
        if inputs[name].is_floating_point():
            raise NotCovered("the embedding takes ids, not rows of weights")
        return inputs[name]

    return taken


call = {
    "layer_norm": {"x": "x_btd"},
    "positional_encoding": {"x": "zeros_btd"},
    "embedding": {"x": ids("token")},
    "multi_head_attention": {"q": "query_btd", "k": "memory_bsd", "v": "memory_bsd", "mask": attention_mask},
    "feed_forward": {"x": "x_btd"},
    "encoder_layer": {"x": "x_btd", "src_mask": "mask_bhts"},
    "decoder_layer": {"dec": "x_btd", "enc": "memory_bsd", "trg_mask": decoder_mask, "src_mask": "cross_mask_bhts"},
    "logits": {"input": "x_btd"},
    "transformer": {"src": ids("source"), "trg": ids("target")},
}

config = CLASSIC | {
    "encoder_layers": 2,
    "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4,
    "positions": "sinusoidal", "max_positions": 0, "position_start": "row", "segments": 0, "embedding_norm": False,
    "activation": "relu", "norm_placement": "post", "final_norm": False, "scale_embedding": True,
    "share_embeddings": False, "tie_logits": False, "attention_bias": True, "output_bias": True, "padding_id": 0,
}  # fmt: skip
