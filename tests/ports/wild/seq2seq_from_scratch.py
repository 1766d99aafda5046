"""
A from scratch implementation of the Transformer network,
following the paper Attention Is All You Need (post-norm, masks are made inside the model).
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads, dropout=0.0):
        super(SelfAttention, self).__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        self.dropout = dropout

        assert self.head_dim * heads == embed_size, "Embedding size needs to be divisible by heads"

        self.values = nn.Linear(embed_size, embed_size, bias=False)
        self.keys = nn.Linear(embed_size, embed_size, bias=False)
        self.queries = nn.Linear(embed_size, embed_size, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size, bias=False)

    def forward(self, values, keys, query, mask):
        # Get number of training examples
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]

        values = self.values(values)  # (N, value_len, embed_size)
        keys = self.keys(keys)  # (N, key_len, embed_size)
        queries = self.queries(query)  # (N, query_len, embed_size)

        # Split the embedding into self.heads different pieces
        values = values.reshape(N, value_len, self.heads, self.head_dim)
        keys = keys.reshape(N, key_len, self.heads, self.head_dim)
        queries = queries.reshape(N, query_len, self.heads, self.head_dim)

        # queries: (N, query_len, heads, head_dim), keys: (N, key_len, heads, head_dim)
        # energy: (N, heads, query_len, key_len)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])

        # Mask padded indices so their weights become 0
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))

        # Normalize energy values so that they sum to 1
        attention = torch.softmax(energy / (self.head_dim ** (1 / 2)), dim=3)
        if mask is not None:
            attention = attention * mask  # a row with only padding attends to nothing
        attention = F.dropout(attention, self.dropout, self.training)

        # attention: (N, heads, query_len, key_len), values: (N, value_len, heads, head_dim)
        # out: (N, query_len, heads, head_dim), then flatten the last two dimensions
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(
            N, query_len, self.heads * self.head_dim)
        return self.fc_out(out)


class TransformerBlock(nn.Module):
    def __init__(self, embed_size, heads, dropout, hidden, eps):
        super(TransformerBlock, self).__init__()
        self.attention = SelfAttention(embed_size, heads, dropout)
        self.norm1 = nn.LayerNorm(embed_size, eps=eps)
        self.norm2 = nn.LayerNorm(embed_size, eps=eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_size, hidden), nn.ReLU(), nn.Linear(hidden, embed_size))
        self.dropout = nn.Dropout(dropout)

    def forward(self, value, key, query, mask):
        attention = self.attention(value, key, query, mask)

        # Add skip connection, run through normalization and finally dropout
        x = self.norm1(self.dropout(attention) + query)
        forward = self.feed_forward(x)
        out = self.norm2(self.dropout(forward) + x)
        return out


class DecoderBlock(nn.Module):
    def __init__(self, embed_size, heads, dropout, hidden, eps):
        super(DecoderBlock, self).__init__()
        self.norm = nn.LayerNorm(embed_size, eps=eps)
        self.attention = SelfAttention(embed_size, heads, dropout)
        self.transformer_block = TransformerBlock(embed_size, heads, dropout, hidden, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, value, key, src_mask, trg_mask):
        attention = self.attention(x, x, x, trg_mask)
        query = self.norm(self.dropout(attention) + x)
        out = self.transformer_block(value, key, query, src_mask)
        return out


class PositionalEncoding(nn.Module):
    def __init__(self, embed_size, max_length=5000):
        super(PositionalEncoding, self).__init__()
        pos = torch.arange(max_length).double().unsqueeze(1)
        i = torch.arange(0, embed_size, 2).double()  # the even dimensions: 0, 2, 4, ...
        angle = pos / 10000 ** (i / embed_size)
        encoding = torch.zeros(max_length, embed_size).double()
        encoding[:, 0::2] = torch.sin(angle)
        encoding[:, 1::2] = torch.cos(angle)
        encoding = encoding.unsqueeze(0)  # a batch dimension
        self.register_buffer("encoding", encoding, persistent=False)

    def forward(self, x):
        # x: (N, seq_length, embed_size)
        return x + self.encoding[:, :x.size(1)]


class Encoder(nn.Module):
    def __init__(self, src_vocab_size, embed_size, num_layers, heads, hidden, dropout, eps):
        super(Encoder, self).__init__()
        self.word_embedding = nn.Embedding(src_vocab_size, embed_size)
        self.position_encoding = PositionalEncoding(embed_size)
        self.layers = nn.ModuleList(
            [TransformerBlock(embed_size, heads, dropout, hidden, eps) for _ in range(num_layers)]
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        out = self.dropout(self.position_encoding(self.word_embedding(x)))
        # In the Encoder the query, key, value are all the same
        for layer in self.layers:
            out = layer(out, out, out, mask)
        return out


class Decoder(nn.Module):
    def __init__(self, trg_vocab_size, embed_size, num_layers, heads, hidden, dropout, eps):
        super(Decoder, self).__init__()
        self.word_embedding = nn.Embedding(trg_vocab_size, embed_size)
        self.position_encoding = PositionalEncoding(embed_size)
        self.layers = nn.ModuleList(
            [DecoderBlock(embed_size, heads, dropout, hidden, eps) for _ in range(num_layers)]
        )
        self.fc_out = nn.Linear(embed_size, trg_vocab_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, enc_out, src_mask, trg_mask):
        x = self.dropout(self.position_encoding(self.word_embedding(x)))
        for layer in self.layers:
            x = layer(x, enc_out, enc_out, src_mask, trg_mask)
        return self.fc_out(x)


class Transformer(nn.Module):
    def __init__(self, src_vocab_size, trg_vocab_size, src_pad_idx, trg_pad_idx, embed_size=512, encoder_layers=6,
                 decoder_layers=6, hidden=2048, heads=8, dropout=0.1, eps=1e-5):
        super(Transformer, self).__init__()
        self.encoder = Encoder(src_vocab_size, embed_size, encoder_layers, heads, hidden, dropout, eps)
        self.decoder = Decoder(trg_vocab_size, embed_size, decoder_layers, heads, hidden, dropout, eps)
        self.src_pad_idx = src_pad_idx
        self.trg_pad_idx = trg_pad_idx

    def make_src_mask(self, src):
        # (N, 1, 1, src_len)
        return (src != self.src_pad_idx).unsqueeze(1).unsqueeze(2)

    def make_trg_mask(self, trg):
        # (N, 1, trg_len, trg_len)
        N, trg_len = trg.shape
        pad_mask = (trg != self.trg_pad_idx).unsqueeze(1).unsqueeze(2)
        causal_mask = torch.tril(torch.ones((trg_len, trg_len), device=trg.device)).bool()
        return pad_mask & causal_mask.expand(N, 1, trg_len, trg_len)

    def forward(self, src, trg):
        src_mask = self.make_src_mask(src)
        trg_mask = self.make_trg_mask(trg)
        enc_src = self.encoder(src, src_mask)
        return self.decoder(trg, enc_src, src_mask, trg_mask)


from rosettaformer.ports import CLASSIC, NotCovered  # noqa: E402

framework = "torch"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "model_width": 16, "heads": 2, "key_value_heads": 2,
    "key_size": 8, "value_size": 8, "activation": "relu", "norm_placement": "post",
    "final_norm": False, "scale_embedding": False, "share_embeddings": False, "tie_logits": False,
    "attention_bias": False, "output_bias": True, "position_start": "row", "position_offset": 0,
    "positions": "sinusoidal", "max_positions": 0, "segments": 0, "embedding_norm": False}


def build_transformer(cfg, dtype):
    model = Transformer(
        cfg.source_vocabulary, cfg.target_vocabulary, cfg.padding_id, cfg.padding_id,
        embed_size=cfg.model_width, encoder_layers=cfg.encoder_layers, decoder_layers=cfg.decoder_layers,
        hidden=cfg.feed_forward_width, heads=cfg.heads, eps=cfg.epsilon,
    )
    return model.to(dtype)


components = {
    "transformer": build_transformer,
    "positional_encoding": lambda cfg, dtype: PositionalEncoding(cfg.model_width).to(dtype),
    "multi_head_attention": lambda cfg, dtype: SelfAttention(cfg.model_width, cfg.heads).to(dtype),
    "encoder_layer": lambda cfg, dtype: TransformerBlock(
        cfg.model_width, cfg.heads, 0.1, cfg.feed_forward_width, cfg.epsilon).to(dtype),
    "decoder_layer": lambda cfg, dtype: DecoderBlock(
        cfg.model_width, cfg.heads, 0.1, cfg.feed_forward_width, cfg.epsilon).to(dtype),
}

weights = {
    "transformer": (("source_embedding.table", "encoder.word_embedding.weight", "v d"),
        ("target_embedding.table", "decoder.word_embedding.weight", "v d"),
        ("logits.kernel", "decoder.fc_out.weight", "v d"),
        ("logits.bias", "decoder.fc_out.bias", "v")),
    "encoder_layer": (("self_attention", "attention"), ("self_attention_norm", "norm1"),
        ("feed_forward_norm", "norm2")),
    "decoder_layer": (("self_attention", "attention"), ("self_attention_norm", "norm"),
        ("cross_attention", "transformer_block.attention"),
        ("cross_attention_norm", "transformer_block.norm1"),
        ("feed_forward", "transformer_block.feed_forward"),
        ("feed_forward_norm", "transformer_block.norm2")),
    "multi_head_attention": (("query.kernel", "queries.weight", "(h k) d"),
        ("key.kernel", "keys.weight", "(g k) d"), ("value.kernel", "values.weight", "(g e) d"),
        ("output.kernel", "fc_out.weight", "d (h e)")),
    "feed_forward": (("hidden.kernel", "0.weight", "f d"), ("hidden.bias", "0.bias", "f"),
        ("output.kernel", "2.weight", "d f"), ("output.bias", "2.bias", "d")),
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
}


def source_ids(inputs):
    if inputs["source"].is_floating_point() or inputs["target"].is_floating_point():
        raise NotCovered("nn.Embedding takes ids only")
    return inputs["source"]


def attention_mask(inputs):
    mask = inputs["mask_bhts"]
    if inputs["causal"]:
        q_len, k_len = inputs["query_btd"].shape[1], inputs["memory_bsd"].shape[1]
        causal = torch.ones(q_len, k_len).tril(k_len - q_len).bool()
        mask = causal if mask is None else mask & causal
    return mask


def decoder_self_mask(inputs):
    x, mask = inputs["x_btd"], inputs["self_mask_bhts"]
    causal = torch.ones(x.shape[1], x.shape[1]).tril().bool()
    return causal if mask is None else mask & causal


call = {
    "transformer": {"src": source_ids, "trg": "target"},
    "positional_encoding": {"x": "zeros_btd"},
    "multi_head_attention": {"values": "memory_bsd", "keys": "memory_bsd", "query": "query_btd",
        "mask": attention_mask},
    "encoder_layer": {"value": "x_btd", "key": "x_btd", "query": "x_btd", "mask": "mask_bhts"},
    "decoder_layer": {"x": "x_btd", "value": "memory_bsd", "key": "memory_bsd",
        "src_mask": "cross_mask_bhts", "trg_mask": decoder_self_mask},
}
