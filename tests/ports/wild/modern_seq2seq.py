"""Encoder-decoder Transformer: pre-norm, fused qkv, SDPA, GELU(tanh), one tied table.

No biases in attention; head_dim is a free choice (n_head * head_dim need not be d_model).
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from rosettaformer.ports import CLASSIC, NotCovered


@dataclass
class ModelArgs:
    vocab_size: int
    d_model: int
    n_head: int
    head_dim: int
    d_ff: int
    n_enc_layer: int
    n_dec_layer: int
    norm_eps: float = 1e-5
    pad_id: int = 0
    scale_emb: bool = True


def sinusoids(positions, dim):
    """(b, t) integer positions -> (b, t, dim), sin on even and cos on odd channels."""
    inv_freq = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim)
    angles = positions.to(torch.float64).unsqueeze(-1) * inv_freq
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :dim]


class Sinusoids(nn.Module):
    def __init__(self, dim, dtype):
        super().__init__()
        self.dim, self.dtype = dim, dtype

    def forward(self, positions):
        return sinusoids(positions, self.dim).to(self.dtype)


class Attention(nn.Module):
    """Multi-head attention. wqkv rows: all query heads, then all key heads, then all value heads."""

    def __init__(self, args):
        super().__init__()
        self.n_head, self.head_dim = args.n_head, args.head_dim
        self.inner = args.n_head * args.head_dim
        self.wqkv = nn.Linear(args.d_model, 3 * self.inner, bias=False)
        self.wo = nn.Linear(self.inner, args.d_model, bias=False)

    def heads(self, x):
        return x.view(*x.shape[:2], self.n_head, self.head_dim).transpose(1, 2)

    def project(self, x, memory):
        if memory is None:
            q, k, v = self.wqkv(x).chunk(3, dim=-1)
        else:
            w_q, w_kv = self.wqkv.weight.split([self.inner, 2 * self.inner], dim=0)
            q, (k, v) = F.linear(x, w_q), F.linear(memory, w_kv).chunk(2, dim=-1)
        return self.heads(q), self.heads(k), self.heads(v)

    def forward(self, x, memory=None, mask=None, causal=False):
        """mask: bool, broadcastable to (b, h, t, s), True where a query may look."""
        q, k, v = self.project(x, memory)
        B, _, T, _ = q.shape
        S = k.shape[2]
        if causal:
            keep = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
            mask = keep if mask is None else mask & keep

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.transpose(1, 2).reshape(B, T, self.inner)
        return self.wo(y)


class MLP(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.up = nn.Linear(args.d_model, args.d_ff)
        self.down = nn.Linear(args.d_ff, args.d_model)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class EncoderBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attn_norm = nn.LayerNorm(args.d_model, eps=args.norm_eps)
        self.attn = Attention(args)
        self.mlp_norm = nn.LayerNorm(args.d_model, eps=args.norm_eps)
        self.mlp = MLP(args)

    def forward(self, x, mask=None):
        x = x + self.attn(self.attn_norm(x), mask=mask)
        x = x + self.mlp(self.mlp_norm(x))
        return x


class DecoderBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attn_norm = nn.LayerNorm(args.d_model, eps=args.norm_eps)
        self.attn = Attention(args)
        self.cross_norm = nn.LayerNorm(args.d_model, eps=args.norm_eps)
        self.cross = Attention(args)
        self.mlp_norm = nn.LayerNorm(args.d_model, eps=args.norm_eps)
        self.mlp = MLP(args)

    def forward(self, x, memory, self_mask=None, cross_mask=None):
        x = x + self.attn(self.attn_norm(x), mask=self_mask, causal=True)
        x = x + self.cross(self.cross_norm(x), memory=memory, mask=cross_mask)
        return x + self.mlp(self.mlp_norm(x))


class Encoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock(args) for _ in range(args.n_enc_layer))
        self.norm = nn.LayerNorm(args.d_model, eps=args.norm_eps)

    def forward(self, x, mask=None, output_hidden_states=False):
        hidden_states = [x]
        for block in self.blocks:
            x = block(x, mask)
            hidden_states.append(x)
        last = self.norm(hidden_states[-1])
        return (last, hidden_states) if output_hidden_states else last


class Decoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.blocks = nn.ModuleList(DecoderBlock(args) for _ in range(args.n_dec_layer))
        self.norm = nn.LayerNorm(args.d_model, eps=args.norm_eps)

    def forward(self, x, memory, self_mask=None, cross_mask=None):
        for block in self.blocks:
            x = block(x, memory, self_mask, cross_mask)
        x = self.norm(x)
        return x


class TokenEmbedding(nn.Embedding):
    def __init__(self, args):
        super().__init__(args.vocab_size, args.d_model)
        self.normalizer = args.d_model**0.5 if args.scale_emb else 1.0

    def forward(self, ids):
        if ids.is_floating_point():
            raise NotCovered("rows of floats instead of ids")
        return super().forward(ids) * self.normalizer


class Seq2Seq(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.tok = TokenEmbedding(args)
        self.encoder = Encoder(args)
        self.decoder = Decoder(args)

    def embed(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.tok(ids)
        return x + sinusoids(positions, self.args.d_model).to(x.dtype)

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        src_keep = src.ne(self.args.pad_id) if src_mask is None else src_mask.bool()
        tgt_keep = tgt.ne(self.args.pad_id) if tgt_mask is None else tgt_mask.bool()
        src_keep, tgt_keep = src_keep[:, None, None, :], tgt_keep[:, None, None, :]
        memory = self.encoder(self.embed(src), src_keep)
        h = self.decoder(self.embed(tgt), memory, tgt_keep, src_keep)
        return F.linear(h, self.tok.weight)


framework = "torch"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "model_width": 12, "heads": 4, "key_value_heads": 4,
    "key_size": 5, "value_size": 5, "norm_placement": "pre", "final_norm": True,
    "activation": "gelu_tanh", "attention_bias": False, "output_bias": False, "tie_logits": True,
    "share_embeddings": True, "positions": "sinusoidal", "position_start": "row", "segments": 0,
    "embedding_norm": False}


def args_of(c):
    return ModelArgs(
        vocab_size=c.target_vocabulary, d_model=c.model_width, n_head=c.heads, head_dim=c.key_size,
        d_ff=c.feed_forward_width, n_enc_layer=c.encoder_layers, n_dec_layer=c.decoder_layers,
        norm_eps=c.epsilon, pad_id=c.padding_id, scale_emb=c.scale_embedding)


def torch_dtype(dtype):
    return dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype))


def builder(cls):
    return lambda c, dtype: cls(args_of(c)).to(torch_dtype(dtype))


components = {
    "layer_norm": lambda c, dtype: nn.LayerNorm(c.model_width, eps=c.epsilon).to(torch_dtype(dtype)),
    "feed_forward": builder(MLP),
    "embedding": builder(TokenEmbedding),
    "positional_encoding": lambda c, dtype: Sinusoids(c.model_width, torch_dtype(dtype)),
    "multi_head_attention": builder(Attention),
    "encoder_layer": builder(EncoderBlock),
    "decoder_layer": builder(DecoderBlock),
    "encoder": builder(Encoder),
    "decoder": builder(Decoder),
    "transformer": builder(Seq2Seq),
}

weights = {
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "feed_forward": (("hidden.kernel", "up.weight", "f d"), ("hidden.bias", "up.bias", "f"),
        ("output.kernel", "down.weight", "d f"), ("output.bias", "down.bias", "d")),
    "embedding": (("table", "weight", "v d"),),
    "multi_head_attention": (("query.kernel", "wqkv.weight", "(0/3 h k) d"),
        ("key.kernel", "wqkv.weight", "(1/3 g k) d"),
        ("value.kernel", "wqkv.weight", "(2/3 g e) d"), ("output.kernel", "wo.weight", "d (h e)")),
    "encoder_layer": (("self_attention", "attn"), ("self_attention_norm", "attn_norm"),
        ("feed_forward", "mlp"), ("feed_forward_norm", "mlp_norm")),
    "decoder_layer": (("self_attention", "attn"), ("self_attention_norm", "attn_norm"),
        ("cross_attention", "cross"), ("cross_attention_norm", "cross_norm"),
        ("feed_forward", "mlp"), ("feed_forward_norm", "mlp_norm")),
    "encoder": (("layers", "blocks"), ("final_norm", "norm")),
    "decoder": (("layers", "blocks"), ("final_norm", "norm")),
    "transformer": (("source_embedding", "tok"), ("target_embedding", "tok")),
}

call = {
    "layer_norm": {"input": "x_btd"},
    "feed_forward": {"x": "x_btd"},
    "embedding": {"ids": "token"},
    "positional_encoding": {"positions": "position_bt"},
    "multi_head_attention": {"x": "query_btd", "memory": "memory_bsd", "mask": "mask_bhts", "causal": "causal"},
    "encoder_layer": {"x": "x_btd", "mask": "mask_bhts"},
    "decoder_layer": {"x": "x_btd", "memory": "memory_bsd", "self_mask": "self_mask_bhts", "cross_mask": "cross_mask_bhts"},
    "encoder": {"x": "x_bsd", "mask": "mask_bhts"},
    "decoder": {"x": "x_btd", "memory": "memory_bsd", "self_mask": "self_mask_bhts", "cross_mask": "cross_mask_bhts"},
    "transformer": {"src": "source", "tgt": "target", "src_mask": "source_mask_bs", "tgt_mask": "target_mask_bt"},
}
