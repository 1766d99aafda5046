"""A small GPT: decoder-only language model, one file, in the spirit of nanoGPT and minGPT.

The hidden size is n_embd, the context block_size; blocks are pre-norm, positions are learned, the output shares its weight with the token embedding.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F
from rosettaformer.ports import CLASSIC


class NewGELU(nn.Module):
    """The GELU of the Google BERT repository (and of OpenAI GPT), by tanh."""

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class CausalSelfAttention(nn.Module):
    """Masked multi-head self-attention; query, key and value come out of one projection."""

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        causal = torch.tril(torch.ones(config.block_size, config.block_size, dtype=torch.bool))
        self.register_buffer("bias", causal.view(1, 1, config.block_size, config.block_size), persistent=False)
        self.n_head = config.n_head
        self.n_embd = config.n_embd

    def forward(self, x, attention_mask=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        visible = self.bias[:, :, :T, :T]
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None, :]
        att = att.masked_fill(~visible, torch.finfo(att.dtype).min)
        att = F.softmax(att, dim=-1)
        att = att.masked_fill(~visible, 0.0)  # a query in the padding sees nothing at all
        att = self.attn_dropout(att)
        y = att @ v  # (B, nh, T, T) x (B, nh, T, hs) -> (B, nh, T, hs)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.n_inner, bias=config.bias)
        self.gelu = NewGELU()
        self.c_proj = nn.Linear(config.n_inner, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        return self.dropout(x)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x, attention_mask=None):
        x = x + self.attn(self.ln_1(x), attention_mask)
        x = x + self.mlp(self.ln_2(x))
        return x


@dataclass
class GPTConfig:
    block_size: int = 32
    vocab_size: int = 65
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 16
    n_inner: int = 64
    dropout: float = 0.0
    bias: bool = True
    layer_norm_epsilon: float = 1e-5
    pad_token: int | None = None


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                wpe=nn.Embedding(config.block_size, config.n_embd),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                ln_f=nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon),
            )
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight  # https://paperswithcode.com/method/weight-tying

    def forward(self, idx, attention_mask=None):
        b, t = idx.size()
        assert t <= self.config.block_size, f"sequence of length {t}, block size is only {self.config.block_size}"
        if attention_mask is None:
            attention_mask = torch.ones_like(idx, dtype=torch.bool)
            if self.config.pad_token is not None:
                attention_mask = idx != self.config.pad_token
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device).unsqueeze(0)  # (1, t)

        tok_emb = self.transformer.wte(idx)  # (b, t, n_embd)
        pos_emb = self.transformer.wpe(pos)  # (1, t, n_embd)
        x = self.transformer.drop(tok_emb + pos_emb)
        for block in self.transformer.h:
            x = block(x, attention_mask)
        x = self.transformer.ln_f(x)
        return self.lm_head(x)


framework = "torch"
dtypes = ("float64", "float32")
config = CLASSIC | {"model_width": 16, "heads": 4, "key_value_heads": 4, "key_size": 4,
    "value_size": 4, "encoder_layers": 0, "positions": "learned", "max_positions": 11,
    "position_offset": 0, "position_start": "row", "segments": 0, "embedding_norm": False,
    "activation": "gelu_tanh", "norm_placement": "pre", "final_norm": True,
    "scale_embedding": False, "share_embeddings": False, "tie_logits": True, "attention_bias": True,
    "output_bias": False}


def settings(config):
    return GPTConfig(
        block_size=config.max_positions, vocab_size=config.target_vocabulary,
        n_layer=config.decoder_layers, n_head=config.heads, n_embd=config.model_width,
        n_inner=config.feed_forward_width, layer_norm_epsilon=config.epsilon,
        pad_token=config.padding_id)


def build_transformer(config, dtype):
    return GPT(settings(config)).to(dtype).eval()


def build_feed_forward(config, dtype):
    return MLP(settings(config)).to(dtype).eval()


components = {"transformer": build_transformer, "feed_forward": build_feed_forward}

call = {
    "transformer": {"idx": "target", "attention_mask": "target_mask_bt"},
    "feed_forward": {"x": "x_btd"},
}

weights = {
    "feed_forward": (("hidden.kernel", "c_fc.weight", "f d"), ("hidden.bias", "c_fc.bias", "f"),
        ("output.kernel", "c_proj.weight", "d f"), ("output.bias", "c_proj.bias", "d")),
    "multi_head_attention": (("query.kernel", "c_attn.weight", "(0/3 h k) d"),
        ("key.kernel", "c_attn.weight", "(1/3 g k) d"),
        ("value.kernel", "c_attn.weight", "(2/3 g e) d"),
        ("query.bias", "c_attn.bias", "(0/3 h k)"), ("key.bias", "c_attn.bias", "(1/3 g k)"),
        ("value.bias", "c_attn.bias", "(2/3 g e)"), ("output.kernel", "c_proj.weight", "d (h e)"),
        ("output.bias", "c_proj.bias", "d")),
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "transformer": (("target_embedding.table", "transformer.wte.weight", "v d"),
        ("target_position_embedding.table", "transformer.wpe.weight", "p d"),
        ("decoder.layers", "transformer.h"), ("self_attention", "attn"),
        ("self_attention_norm", "ln_1"), ("feed_forward", "mlp"), ("feed_forward_norm", "ln_2"),
        ("decoder.final_norm", "transformer.ln_f")),
}
