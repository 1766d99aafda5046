"""Transformer for NMT in the manner of the 2018 toolkits: separate classes, post-norm, bmm attention
over batch*heads, padding masks True at <pad>, additive attention masks."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from rosettaformer.ports import CLASSIC, NotCovered


def fill_with_neg_inf(t):
    return t.fill_(float("-inf"))


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, bias=True, add_zero_attn=False):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim
        self.scaling = self.head_dim ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.add_zero_attn = add_zero_attn

    def _shape(self, x, bsz):
        x = x.view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)
        return x.contiguous().view(bsz * self.num_heads, -1, self.head_dim)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None, need_weights=False):
        """key_padding_mask: (bsz, src_len), True at padding. attn_mask: float, added to the scores."""
        bsz, tgt_len, _ = query.size()

        q = self.q_proj(query)
        q = q * self.scaling
        k = self.k_proj(key)
        v = self.v_proj(value)
        q, k, v = self._shape(q, bsz), self._shape(k, bsz), self._shape(v, bsz)
        src_len = k.size(1)

        if self.add_zero_attn:
            src_len += 1
            k = torch.cat([k, k.new_zeros(k.size(0), 1, self.head_dim)], dim=1)
            v = torch.cat([v, v.new_zeros(v.size(0), 1, self.head_dim)], dim=1)
            if attn_mask is not None:
                attn_mask = F.pad(attn_mask, (0, 1))
            if key_padding_mask is not None:
                key_padding_mask = F.pad(key_padding_mask, (0, 1), value=False)

        scores = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            scores = scores.view(bsz, self.num_heads, tgt_len, src_len) + attn_mask
            scores = scores.view(bsz * self.num_heads, tgt_len, src_len)
        if key_padding_mask is not None:
            pad = key_padding_mask.repeat_interleave(self.num_heads, dim=0)
            scores = scores.masked_fill(pad.unsqueeze(1), float("-inf"))

        probs = F.softmax(scores, dim=-1)
        # nothing to attend to: softmax gives nan there, we want zeros
        probs = probs.masked_fill(scores == float("-inf"), 0.0)

        attn = torch.bmm(probs, v)
        attn = attn.view(bsz, self.num_heads, tgt_len, self.head_dim)
        attn = attn.transpose(1, 2).contiguous().view(bsz, tgt_len, self.embed_dim)
        attn = self.out_proj(attn)
        if need_weights:
            return attn, probs.view(bsz, self.num_heads, tgt_len, src_len)
        return attn


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        inter = F.relu(self.w_1(x))
        return self.w_2(inter)


class TransformerEncoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, eps):
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, heads)
        self.self_attn_layer_norm = nn.LayerNorm(d_model, eps=eps)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff)
        self.final_layer_norm = nn.LayerNorm(d_model, eps=eps)

    def forward(self, x, encoder_padding_mask=None, attn_mask=None):
        residual = x
        x = self.self_attn(x, x, x, key_padding_mask=encoder_padding_mask, attn_mask=attn_mask)
        x = self.self_attn_layer_norm(residual + x)
        residual = x
        x = self.feed_forward(x)
        x = self.final_layer_norm(residual + x)
        return x


class TransformerDecoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, eps):
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, heads)
        self.self_attn_layer_norm = nn.LayerNorm(d_model, eps=eps)
        self.encoder_attn = MultiheadAttention(d_model, heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(d_model, eps=eps)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff)
        self.final_layer_norm = nn.LayerNorm(d_model, eps=eps)

    def buffered_future_mask(self, x):
        dim = x.size(1)
        return torch.triu(fill_with_neg_inf(x.new_zeros(dim, dim)), 1)

    def forward(self, x, encoder_out, encoder_padding_mask=None, self_attn_padding_mask=None,
                self_attn_mask=None, encoder_attn_mask=None):
        future = self.buffered_future_mask(x)
        self_attn_mask = future if self_attn_mask is None else self_attn_mask + future

        residual = x
        x = self.self_attn(x, x, x, key_padding_mask=self_attn_padding_mask, attn_mask=self_attn_mask)
        x = self.self_attn_layer_norm(residual + x)
        residual = x
        x = self.encoder_attn(x, encoder_out, encoder_out, key_padding_mask=encoder_padding_mask,
                              attn_mask=encoder_attn_mask)
        x = self.encoder_attn_layer_norm(residual + x)
        residual = x
        x = self.feed_forward(x)
        x = self.final_layer_norm(residual + x)
        return x


class PositionalEncoding(nn.Module):
    def __init__(self, dim, init_size=64):
        super().__init__()
        self.dim = dim
        self.pe = self.get_embedding(init_size, dim)
        self.register_buffer("_float_tensor", torch.zeros(1), persistent=False)  # tells our dtype

    @staticmethod
    def get_embedding(num_embeddings, dim):
        pe = torch.zeros(num_embeddings, dim, dtype=torch.float64)
        position = torch.arange(0, num_embeddings, dtype=torch.float64).unsqueeze(1)
        half_dim = dim / 2
        div_term = torch.exp(torch.arange((dim + 1) // 2, dtype=torch.float64) * -(math.log(10000.0) / half_dim))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)[:, :dim // 2]
        return pe

    def forward(self, positions):
        if positions.numel() and int(positions.max()) >= self.pe.size(0):
            # recompute/expand the table if needed
            self.pe = self.get_embedding(int(positions.max()) + 1, self.dim)
        return self.pe[positions].to(self._float_tensor)


class Embeddings(nn.Module):
    """Word embedding times sqrt(d), plus the encoding of the position among the real tokens."""

    def __init__(self, num_embeddings, dim, padding_idx, scale):
        super().__init__()
        self.embed_tokens = nn.Embedding(num_embeddings, dim)
        self.embed_scale = math.sqrt(dim) if scale else 1.0
        self.embed_positions = PositionalEncoding(dim)
        self.padding_idx = padding_idx

    def make_positions(self, padding_mask):
        # left-padded rows: position 0 is the first token that is not <pad>
        left = padding_mask.long().cumprod(dim=1).sum(dim=1, keepdim=True)
        steps = torch.arange(padding_mask.size(1), device=padding_mask.device)
        return (steps - left).clamp(min=0)

    def forward(self, tokens, padding_mask):
        if tokens.is_floating_point():
            raise NotCovered("rows of floats instead of ids")
        x = self.embed_scale * self.embed_tokens(tokens)
        return x + self.embed_positions(self.make_positions(padding_mask))


class TransformerEncoder(nn.Module):
    def __init__(self, num_layers, d_model, heads, d_ff, eps):
        super().__init__()
        self.layers = nn.ModuleList([TransformerEncoderLayer(d_model, heads, d_ff, eps) for _ in range(num_layers)])

    def forward(self, emb, padding_mask=None, attn_mask=None):
        x = emb
        for layer in self.layers:
            x = layer(x, padding_mask, attn_mask)
        return x


class TransformerDecoder(nn.Module):
    def __init__(self, num_layers, d_model, heads, d_ff, eps):
        super().__init__()
        self.transformer_layers = nn.ModuleList(
            [TransformerDecoderLayer(d_model, heads, d_ff, eps) for _ in range(num_layers)])

    def forward(self, emb, memory_bank, src_pad_mask=None, tgt_pad_mask=None, self_attn_mask=None, src_attn_mask=None):
        output = emb
        for layer in self.transformer_layers:
            output = layer(output, memory_bank, src_pad_mask, tgt_pad_mask, self_attn_mask, src_attn_mask)
        return output


class NMTModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        sizes = (c.model_width, c.heads, c.feed_forward_width, c.epsilon)
        self.padding_idx = c.padding_id
        self.src_embed = Embeddings(c.source_vocabulary, c.model_width, c.padding_id, c.scale_embedding)
        self.tgt_embed = Embeddings(c.target_vocabulary, c.model_width, c.padding_id, c.scale_embedding)
        self.encoder = TransformerEncoder(c.encoder_layers, *sizes)
        self.decoder = TransformerDecoder(c.decoder_layers, *sizes)
        self.generator = nn.Linear(c.model_width, c.target_vocabulary, bias=c.output_bias)

    def forward(self, src_tokens, prev_output_tokens, src_pad=None, tgt_pad=None):
        if src_pad is None:
            src_pad = src_tokens.eq(self.padding_idx)
        if tgt_pad is None:
            tgt_pad = prev_output_tokens.eq(self.padding_idx)
        memory_bank = self.encoder(self.src_embed(src_tokens, src_pad), src_pad)
        dec_out = self.decoder(self.tgt_embed(prev_output_tokens, tgt_pad), memory_bank, src_pad, tgt_pad)
        return self.generator(dec_out)


framework = "torch"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3,
    "key_size": 4, "value_size": 4, "norm_placement": "post", "final_norm": False,
    "activation": "relu", "attention_bias": True, "share_embeddings": False, "tie_logits": False,
    "positions": "sinusoidal", "position_start": "first_token", "segments": 0,
    "embedding_norm": False}


def cast(module, dtype):
    return module.to(dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype)))


def stack_sizes(c):
    return c.model_width, c.heads, c.feed_forward_width, c.epsilon


def additive(name, like):
    """The case's boolean mask (True = may attend) as floats to add: 0 or -inf."""
    def convert(inputs):
        mask = inputs[name]
        if mask is None:
            return None
        return torch.zeros(mask.shape, dtype=inputs[like].dtype).masked_fill(~mask, float("-inf"))
    return convert


def attention_mask(inputs):
    total = additive("mask_bhts", "query_btd")(inputs)
    if inputs.get("bias_bhts") is not None:
        total = inputs["bias_bhts"] if total is None else total + inputs["bias_bhts"]
    if inputs.get("causal"):
        t, s = inputs["query_btd"].shape[1], inputs["memory_bsd"].shape[1]
        future = torch.triu(fill_with_neg_inf(torch.zeros(t, s, dtype=inputs["query_btd"].dtype)), 1 + s - t)
        total = future if total is None else total + future
    return total


def flip(name):
    return lambda inputs: None if inputs.get(name) is None else ~inputs[name].bool()


components = {
    "layer_norm": lambda c, dtype: cast(nn.LayerNorm(c.model_width, eps=c.epsilon), dtype),
    "feed_forward": lambda c, dtype: cast(PositionwiseFeedForward(c.model_width, c.feed_forward_width), dtype),
    "multi_head_attention": lambda c, dtype: cast(MultiheadAttention(c.model_width, c.heads), dtype),
    "positional_encoding": lambda c, dtype: cast(PositionalEncoding(c.model_width), dtype),
    "encoder_layer": lambda c, dtype: cast(TransformerEncoderLayer(*stack_sizes(c)), dtype),
    "decoder_layer": lambda c, dtype: cast(TransformerDecoderLayer(*stack_sizes(c)), dtype),
    "encoder": lambda c, dtype: cast(TransformerEncoder(c.encoder_layers, *stack_sizes(c)), dtype),
    "decoder": lambda c, dtype: cast(TransformerDecoder(c.decoder_layers, *stack_sizes(c)), dtype),
    "logits": lambda c, dtype: cast(nn.Linear(c.model_width, c.target_vocabulary, bias=c.output_bias), dtype),
    "transformer": lambda c, dtype: cast(NMTModel(c), dtype),
}

weights = {
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "feed_forward": (("hidden.kernel", "w_1.weight", "f d"), ("hidden.bias", "w_1.bias", "f"),
        ("output.kernel", "w_2.weight", "d f"), ("output.bias", "w_2.bias", "d")),
    "multi_head_attention": (("query.kernel", "q_proj.weight", "(h k) d"),
        ("query.bias", "q_proj.bias", "(h k)"), ("key.kernel", "k_proj.weight", "(g k) d"),
        ("key.bias", "k_proj.bias", "(g k)"), ("value.kernel", "v_proj.weight", "(g e) d"),
        ("value.bias", "v_proj.bias", "(g e)"), ("output.kernel", "out_proj.weight", "d (h e)"),
        ("output.bias", "out_proj.bias", "d")),
    "encoder_layer": (("self_attention", "self_attn"),
        ("self_attention_norm", "self_attn_layer_norm"), ("feed_forward_norm", "final_layer_norm")),
    "decoder_layer": (("self_attention", "self_attn"),
        ("self_attention_norm", "self_attn_layer_norm"), ("cross_attention", "encoder_attn"),
        ("cross_attention_norm", "encoder_attn_layer_norm"),
        ("feed_forward_norm", "final_layer_norm")),
    "decoder": (("layers", "transformer_layers"),),
    "embedding": (("table", "embed_tokens.weight", "v d"),),
    "logits": (("kernel", "weight", "v d"), ("bias", "bias", "v")),
    "transformer": (("source_embedding", "src_embed"), ("target_embedding", "tgt_embed"),
        ("logits", "generator")),
}

call = {
    "layer_norm": {"input": "x_btd"},
    "feed_forward": {"x": "x_btd"},
    "logits": {"input": "x_btd"},
    "positional_encoding": {"positions": "position_bt"},
    "multi_head_attention": {
        "query": "query_btd", "key": "memory_bsd", "value": "memory_bsd",
        "attn_mask": attention_mask, "need_weights": "return_weights",
    },
    "encoder_layer": {"x": "x_btd", "attn_mask": additive("mask_bhts", "x_btd")},
    "decoder_layer": {
        "x": "x_btd", "encoder_out": "memory_bsd",
        "self_attn_mask": additive("self_mask_bhts", "x_btd"), "encoder_attn_mask": additive("cross_mask_bhts", "x_btd"),
    },
    "encoder": {"emb": "x_bsd", "attn_mask": additive("mask_bhts", "x_bsd")},
    "decoder": {
        "emb": "x_btd", "memory_bank": "memory_bsd",
        "self_attn_mask": additive("self_mask_bhts", "x_btd"), "src_attn_mask": additive("cross_mask_bhts", "x_btd"),
    },
    "transformer": {
        "src_tokens": "source", "prev_output_tokens": "target",
        "src_pad": flip("source_mask_bs"), "tgt_pad": flip("target_mask_bt"),
    },
}
