"""A small GPT in one file: learned positions, pre-norm blocks, one matrix for the embedding and the head."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F
from rosettaformer.ports import CLASSIC


class LayerNorm(nn.Module):
    def __init__(self, ndim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim))
        self.eps = eps

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, self.eps)


class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.n_inner)
        self.gelu = NewGELU()
        self.c_proj = nn.Linear(config.n_inner, config.n_embd)

    def forward(self, x):
        x = self.c_fc(x)
        x = self.gelu(x)
        return self.c_proj(x)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, config.eps)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.eps)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    n_inner: int = 3072
    eps: float = 1e-5
    bias: bool = True


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            ln_f=LayerNorm(config.n_embd, config.eps),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight  # weight tying

    def forward(self, idx, targets=None, label_smoothing=0.0):
        b, t = idx.size()
        assert t <= self.config.block_size, f"sequence of {t} tokens, block size is only {self.config.block_size}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        logits = self.lm_head(x)
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1, label_smoothing=label_smoothing)
        return logits, loss


class GPTEmbedding(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)

    def forward(self, idx):
        return self.wte(idx)


def gpt_config(c):
    return GPTConfig(c.max_positions, c.target_vocabulary, c.decoder_layers, c.heads, c.model_width, c.feed_forward_width,
                     c.epsilon, c.attention_bias)


framework = "torch"
dtypes = ("float64", "float32")
components = {
    "layer_norm": lambda c, dtype: LayerNorm(c.model_width, c.epsilon),
    "activation": lambda c, dtype: NewGELU(),
    "embedding": lambda c, dtype: GPTEmbedding(c.source_vocabulary, c.model_width),
    "self_attention": lambda c, dtype: CausalSelfAttention(gpt_config(c)),
    "feed_forward": lambda c, dtype: MLP(gpt_config(c)),
    "decoder_layer": lambda c, dtype: Block(gpt_config(c)),
    "transformer": lambda c, dtype: GPT(gpt_config(c)),
    "training_loss": lambda c, dtype: GPT(gpt_config(c)),
}
weights = {
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "embedding": (("table", "wte.weight", "v d"),),
    "position_embedding": (("table", "wpe.weight", "p d"),),
    "self_attention": (("query.kernel", "c_attn.weight", "(0/3 h k) d"),
        ("query.bias", "c_attn.bias", "(0/3 h k)"), ("key.kernel", "c_attn.weight", "(1/3 g k) d"),
        ("key.bias", "c_attn.bias", "(1/3 g k)"), ("value.kernel", "c_attn.weight", "(2/3 g e) d"),
        ("value.bias", "c_attn.bias", "(2/3 g e)"), ("output.kernel", "c_proj.weight", "d (h e)"),
        ("output.bias", "c_proj.bias", "d")),
    "feed_forward": (("hidden.kernel", "c_fc.weight", "f d"), ("hidden.bias", "c_fc.bias", "f"),
        ("output.kernel", "c_proj.weight", "d f"), ("output.bias", "c_proj.bias", "d")),
    "decoder_layer": (("self_attention", "attn"), ("feed_forward", "mlp"),
        ("self_attention_norm", "ln_1"), ("feed_forward_norm", "ln_2")),
    "transformer": (("decoder.layers", "transformer.h"), ("decoder.final_norm", "transformer.ln_f"),
        ("target_embedding", "transformer"), ("target_position_embedding", "transformer")),
}
weights["multi_head_attention"] = weights["self_attention"]
call = {
    "layer_norm": {"input": "x_btd"},
    "activation": {"x": "x"},
    "embedding": {"idx": "token", "if": lambda inputs: not inputs["token"].is_floating_point()},
    "self_attention": {"x": "x_btd", "if": "causal"},
    "feed_forward": {"x": "x_btd"},
    "decoder_layer": {"x": "x_btd"},
    "transformer": {"idx": "target", "return": lambda output, inputs: output[0],
                    "if": lambda inputs: not inputs["target"].is_floating_point()},
    "training_loss": {"idx": lambda inputs: inputs["target"][:, :-1], "targets": lambda inputs: inputs["target"][:, 1:],
                      "label_smoothing": lambda inputs: inputs["smoothing"] or 0.0,
                      "return": lambda output, inputs: output[1]},
}
config = CLASSIC | {"model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "activation": "gelu_tanh",
          "norm_placement": "pre", "final_norm": True, "positions": "learned", "max_positions": 16, "position_offset": 0,
          "position_start": "row", "segments": 0, "embedding_norm": False, "scale_embedding": False, "share_embeddings": False,
          "tie_logits": True, "output_bias": False, "encoder_layers": 0, "padding_id": None}
