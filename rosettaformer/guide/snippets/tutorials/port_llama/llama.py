# region imports
import math

import torch
from torch import nn


# region norm
class Norm(nn.RMSNorm):
    def forward(self, x):  # Llama rounds before multiplying by the scale
        return self.weight * nn.functional.rms_norm(x, self.weight.shape, eps=self.eps)


# region feed_forward
class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.model_width, c.feed_forward_width, bias=False)
        self.up_proj = nn.Linear(c.model_width, c.feed_forward_width, bias=False)
        self.down_proj = nn.Linear(c.feed_forward_width, c.model_width, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


# region frequencies
def frequencies(size, base, scaling):
    frequency = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if scaling.kind == "none":  # Llama 3.0; 3.1 added scaling
        return frequency
    turns = frequency * scaling.original_length / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * kept + frequency / scaling.factor * (1 - kept)


# region rotary
class Rotary(nn.Module):
    def __init__(self, c):
        super().__init__()
        frequency = frequencies(c.key_size, c.rotary_base, c.rotary_scaling)
        self.register_buffer("frequency", frequency, persistent=False)

    def forward(self, x, position):
        angle = position[:, :, None, None] * self.frequency  # b t 1 j
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))
        turned = pairs * torch.polar(torch.ones_like(angle, dtype=wide.dtype), angle.to(wide.dtype))
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)


# region attention
def attention(query, key, value, mask=None, causal=False):
    key, value = (x.repeat_interleave(query.shape[2] // x.shape[2], 2) for x in (key, value))
    wide = torch.promote_types(query.dtype, torch.float32)
    logits = torch.einsum("bthk,bshk->bhts", query.to(wide), key.to(wide))
    seen = torch.ones(logits.shape[-2:], dtype=torch.bool)
    seen = seen.tril() if causal else seen
    seen = seen & mask if mask is not None else seen
    weights = (logits / math.sqrt(query.shape[-1])).masked_fill(~seen, -math.inf).softmax(-1)
    weights = weights.masked_fill(~seen, 0).to(value.dtype)  # fully masked query: 0
    return torch.einsum("bhts,bshe->bthe", weights, value)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.heads, self.groups = c.model_width, c.heads, c.key_value_heads
        self.q_proj = nn.Linear(width, c.heads * c.key_size, bias=False)
        self.k_proj = nn.Linear(width, c.key_value_heads * c.key_size, bias=False)
        self.v_proj = nn.Linear(width, c.key_value_heads * c.value_size, bias=False)
        self.o_proj = nn.Linear(c.heads * c.value_size, width, bias=False)
        self.rotary = Rotary(c)

    def forward(self, x, mask=None, causal=False, position=None):
        position = torch.arange(x.shape[1])[None] if position is None else position
        query = self.q_proj(x).unflatten(-1, (self.heads, -1))  # b t (h k) -> b t h k
        key = self.k_proj(x).unflatten(-1, (self.groups, -1))
        value = self.v_proj(x).unflatten(-1, (self.groups, -1))
        query, key = self.rotary(query, position), self.rotary(key, position)
        return self.o_proj(attention(query, key, value, mask, causal).flatten(2))


# region layer
class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c.model_width, c.epsilon)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.model_width, c.epsilon)
        self.mlp = FeedForward(c)

    def forward(self, x, mask=None, position=None):
        x = x + self.self_attn(self.input_layernorm(x), mask, True, position)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stack(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.decoder_layers))
        self.norm = Norm(c.model_width, c.epsilon)

    def forward(self, x, mask=None, position=None):
        for layer in self.layers:
            x = layer(x, mask, position)
        return self.norm(x)


# region model
def positions(real):
    first = torch.where(real.any(1), real.int().argmax(1), real.shape[1])
    return (torch.arange(real.shape[1]) - first[:, None]).clamp(min=0)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.target_vocabulary, c.model_width)
        self.stack = Stack(c)
        self.lm_head = nn.Linear(c.model_width, c.target_vocabulary, bias=False)

    def forward(self, ids, real=None):
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        x = self.stack(self.embed_tokens(ids), real[:, None, None, :], positions(real))
        return self.lm_head(x)

    # region decode
    def caches(self, made):
        for layer in self.stack.layers:
            layer.self_attn.cache = made()

    def decode_in_steps(self, ids, real, splits):
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        self.caches(list)
        outputs, end, place = [], 0, positions(real)
        for length in splits:
            start, end = end, end + length
            outputs.append(self(ids[:, start:end], real[:, :end], place[:, start:end]))
        self.caches(lambda: None)
        return torch.cat(outputs, 1)


# region generation
@torch.inference_mode()
def generate(model, ids, end, steps, real=None):
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    place, ended, found = positions(real), torch.zeros(len(ids), dtype=torch.bool), []
    model.caches(list)
    for _ in range(steps):
        logits = model(ids, real, place)[:, -1]  # logits after the last token
        token = logits.argmax(-1).masked_fill(ended, end)
        log_p = logits.log_softmax(-1).gather(1, token[:, None])[:, 0]
        found.append((token, log_p.masked_fill(ended, 0)))
        ended = ended | (token == end)
        if ended.all():
            break
        ids, place = token[:, None], place[:, -1:] + 1  # then one token at a time
        real = torch.cat([real, torch.ones_like(ids, dtype=torch.bool)], 1)
    model.caches(lambda: None)
    return tuple(torch.stack(part, 1) for part in zip(*found, strict=True))
