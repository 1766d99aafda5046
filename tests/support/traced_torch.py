"""A hand-written torch Transformer under other names, sequence-first inside its stacks, with one mistake of choice. Used by the tests of
the first divergence; `port(mistake)` gives what a port's file needs."""

import math
import os
import signal
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference_numpy import TransformerConfig


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig, mistake: str = "") -> None:
        super().__init__()
        self.heads, self.mistake = config.heads, mistake
        self.q_proj = nn.Linear(config.model_width, config.heads * config.key_size)
        self.k_proj = nn.Linear(config.model_width, config.heads * config.key_size)
        self.v_proj = nn.Linear(config.model_width, config.heads * config.value_size)
        self.o_proj = nn.Linear(config.heads * config.value_size, config.model_width)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor) -> tuple[Tensor, Tensor]:
        """`t b d`; attn_mask: additive, `b 1 t s`."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)
            for layer, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        scale = 1.0 if self.mistake == "unscaled" else q.shape[-1] ** -0.5
        weights = torch.softmax(q @ k.transpose(-1, -2) * scale + attn_mask, dim=-1)
        mixed = (weights.detach() if self.mistake == "detached" else weights) @ v
        return self.o_proj(mixed.permute(2, 0, 1, 3).flatten(-2)), weights


class FeedForward(nn.Module):
    def __init__(self, config: TransformerConfig, mistake: str = "") -> None:
        super().__init__()
        self.fc1, self.fc2 = (
            nn.Linear(config.model_width, config.feed_forward_width),
            nn.Linear(config.feed_forward_width, config.model_width),
        )
        self.mistake, self.calls = mistake, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.mistake == "raises":
            raise RuntimeError("no such thing")
        if self.mistake == "crashes when forced" and self.calls > 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.mistake == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.mistake == "hangs":
            time.sleep(600)
        return self.fc2(F.relu(self.fc1(x)))


class EncoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig, mistake: str = "") -> None:
        super().__init__()
        self.self_attn, self.ffn = Attention(config, mistake), FeedForward(config)
        self.norm1 = nn.LayerNorm(config.model_width, eps=config.epsilon)
        self.norm2 = nn.LayerNorm(config.model_width, eps=1e-3 if mistake == "epsilon" else config.epsilon)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, x, x, attn_mask=mask)[0])
        return self.norm2(x + self.ffn(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig, mistake: str = "") -> None:
        super().__init__()
        self.self_attn, self.cross_attn, self.ffn = Attention(config), Attention(config), FeedForward(config, mistake)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(config.model_width, eps=config.epsilon) for _ in range(3))
        self.mistake = mistake

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, memory_mask: Tensor) -> Tensor:
        y = self.norm1(x + self.self_attn(x, x, x, attn_mask=mask)[0])
        query = x if self.mistake == "cross query" else y
        y = self.norm2(y + self.cross_attn(query, key=memory, value=memory, attn_mask=memory_mask)[0])
        if self.mistake == "wasteful":
            self.ffn(x)
            self.ffn(memory)
        if self.mistake == "flattened":
            return self.norm3(y + self.ffn(y.flatten(0, 1)).view_as(y))
        return self.norm3(y + self.ffn(y))


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module], config: TransformerConfig) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(config.model_width, eps=config.epsilon)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, config: TransformerConfig, scale: str) -> None:
        super().__init__()
        self.emb, self.scale = nn.Embedding(vocabulary, config.model_width), config.model_width**0.5 if scale == "inside" else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        return self.emb(tokens) * self.scale


class Seq2Seq(nn.Module):
    def __init__(self, config: TransformerConfig, mistake: str, scale: str) -> None:
        super().__init__()
        self.config, self.mistake, self.scale = config, mistake, scale
        self.src_tok_emb = Embedding(config.source_vocabulary, config, scale)
        self.tgt_tok_emb = Embedding(config.target_vocabulary, config, scale)
        self.encoder = Stack([EncoderLayer(config, mistake if i == 1 else "") for i in range(config.encoder_layers)], config)
        self.decoder = Stack([DecoderLayer(config, mistake if i == 0 else "") for i in range(config.decoder_layers)], config)
        self.generator = nn.Linear(config.model_width, config.target_vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory_mask = self._hide(source == self.config.padding_id)
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        memory = self.encoder(self._embed(self.src_tok_emb, source), memory_mask)
        mask = self._hide(target == self.config.padding_id) + torch.where(later, -torch.inf, 0.0).to(memory.dtype)
        return self.generator(self.decoder(self._embed(self.tgt_tok_emb, target), memory, mask, memory_mask)).transpose(0, 1)

    def _hide(self, padding: Tensor) -> Tensor:
        return torch.where(padding, -torch.inf, 0.0).to(self.generator.weight.dtype)[:, None, None]

    def _embed(self, embedding: Embedding, tokens: Tensor) -> Tensor:
        x = embedding(tokens)
        if self.scale == "outside":
            x = x * self.config.model_width**0.5
        position = torch.arange(tokens.shape[1], dtype=torch.float64) + (self.mistake == "position")
        width = x.shape[-1]
        angle = position[:, None] * torch.exp(-math.log(10000.0) * 2 * (torch.arange(width, dtype=torch.float64) // 2) / width)
        table = torch.where(torch.arange(width) % 2 == 0, angle.sin(), angle.cos())
        if self.mistake == "float32 positions":
            table = table.float()
        if self.mistake == "halves":
            table = torch.cat([table[:, 0::2], table[:, 1::2]], -1)
        return (x + table.to(x.dtype)).transpose(0, 1)


def _projections(block: str, native: str) -> list[tuple[str, str, str]]:
    rows = []
    for name, short, axes in (("query", "q", "h k"), ("key", "k", "g k"), ("value", "v", "g e")):
        rows.append((f"{block}.{name}.kernel", f"{native}.{short}_proj.weight", f"({axes}) d"))
        rows.append((f"{block}.{name}.bias", f"{native}.{short}_proj.bias", f"({axes})"))
    return [*rows, (f"{block}.output.kernel", f"{native}.o_proj.weight", "d (h e)"), (f"{block}.output.bias", f"{native}.o_proj.bias", "d")]


def _norm(name: str, native: str) -> list[tuple[str, str, str]]:
    return [(f"{name}.scale", f"{native}.weight", "d"), (f"{name}.offset", f"{native}.bias", "d")]


WEIGHTS = (
    ("source_embedding.table", "src_tok_emb.emb.weight", "v d"),
    ("target_embedding.table", "tgt_tok_emb.emb.weight", "v d"),
    *_projections("self_attention", "self_attn"),
    *_projections("cross_attention", "cross_attn"),
    ("feed_forward.hidden.kernel", "ffn.fc1.weight", "f d"),
    ("feed_forward.hidden.bias", "ffn.fc1.bias", "f"),
    ("feed_forward.output.kernel", "ffn.fc2.weight", "d f"),
    ("feed_forward.output.bias", "ffn.fc2.bias", "d"),
    *_norm("self_attention_norm", "norm1"),
    *_norm("cross_attention_norm", "norm2"),
    *_norm("final_norm", "norm"),
    *(row for i in range(2) for row in _norm(f"encoder.layers.{i}.feed_forward_norm", f"encoder.layers.{i}.norm2")),
    *(row for i in range(2) for row in _norm(f"decoder.layers.{i}.feed_forward_norm", f"decoder.layers.{i}.norm3")),
    ("logits.kernel", "generator.weight", "v d"),
    ("logits.bias", "generator.bias", "v"),
)
PATHS = (
    ("source_embedding", "src_tok_emb"),
    ("target_embedding", "tgt_tok_emb"),
    ("self_attention", "self_attn"),
    ("cross_attention", "cross_attn"),
    ("feed_forward", "ffn"),
    ("self_attention_norm", "norm1"),
    ("cross_attention_norm", "norm2"),
    ("final_norm", "norm"),
    *((f"encoder.layers.{i}.feed_forward_norm", f"encoder.layers.{i}.norm2") for i in range(2)),
    *((f"decoder.layers.{i}.feed_forward_norm", f"decoder.layers.{i}.norm3") for i in range(2)),
    ("logits", "generator"),
)


def port(mistake: str, paths: tuple[tuple[str, str], ...] = PATHS, scale: str = "inside") -> dict[str, Any]:
    """What the file of a port with that mistake contains; "" is the model as it should be. scale: whether embeddings are multiplied by
    sqrt(d) inside their module, outside of it, or nowhere."""
    components = {"transformer": lambda config, dtype: Seq2Seq(config, mistake, scale)}
    return {"framework": "torch", "components": components, "weights": WEIGHTS, "module_paths": paths}
