# region imports
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


# region norm
class Norm(nnx.Module):
    def __init__(self, c, dtype):
        self.scale = nnx.Param(jnp.ones(c.model_width, dtype))
        self.epsilon = c.epsilon

    def __call__(self, x):
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.epsilon) * self.scale


# region feed_forward
class FeedForward(nnx.Module):
    def __init__(self, c, dtype, rngs):
        own = {"use_bias": False, "param_dtype": dtype, "rngs": rngs}
        self.gate_proj = nnx.Linear(c.model_width, c.feed_forward_width, **own)
        self.up_proj = nnx.Linear(c.model_width, c.feed_forward_width, **own)
        self.down_proj = nnx.Linear(c.feed_forward_width, c.model_width, **own)

    def __call__(self, x):
        return self.down_proj(nnx.silu(self.gate_proj(x)) * self.up_proj(x))


# region frequencies
def frequencies(size, base, scaling):
    frequency = base ** (-np.arange(0, size, 2) / size)
    if scaling.kind == "none":  # Llama 3.0; 3.1 added scaling
        return frequency
    turns = frequency * scaling.original_length / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clip(0, 1)
    return frequency * kept + frequency / scaling.factor * (1 - kept)


# region rotary
def rotate(x, position, c):
    frequency = frequencies(c.key_size, c.rotary_base, c.rotary_scaling)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    angle = (position[:, :, None, None] * frequency).astype(wide.dtype)  # b t 1 j
    pairs = jax.lax.complex(wide[..., 0::2], wide[..., 1::2])
    turned = pairs * jax.lax.complex(jnp.cos(angle), jnp.sin(angle))
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape).astype(x.dtype)


# region attention
def attention(query, key, value, mask=None, causal=False):
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], 2) for x in (key, value))
    wide = jnp.promote_types(query.dtype, jnp.float32)
    logits = jnp.einsum("bthk,bshk->bhts", query.astype(wide), key.astype(wide))
    seen = jnp.ones(logits.shape[-2:], bool)
    seen = jnp.tril(seen) if causal else seen
    seen = seen & mask if mask is not None else seen
    logits = jnp.where(seen, logits / math.sqrt(query.shape[-1]), -jnp.inf)
    weights = jnp.where(seen, nnx.softmax(logits), 0)  # fully masked query: 0
    return jnp.einsum("bhts,bshe->bthe", weights.astype(value.dtype), value)


class Attention(nnx.Module):
    def __init__(self, c, dtype, rngs):
        own = {"use_bias": False, "param_dtype": dtype, "rngs": rngs}
        self.q_proj = nnx.LinearGeneral(c.model_width, (c.heads, c.key_size), **own)
        self.k_proj = nnx.LinearGeneral(c.model_width, (c.key_value_heads, c.key_size), **own)
        self.v_proj = nnx.LinearGeneral(c.model_width, (c.key_value_heads, c.value_size), **own)
        shape = (c.heads, c.value_size, c.model_width)
        self.o_proj = nnx.Einsum("bthe,hed->btd", shape, param_dtype=dtype, rngs=rngs)
        self.c = c

    def __call__(self, x, mask=None, causal=False, position=None):
        position = jnp.arange(x.shape[1])[None] if position is None else position
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)  # b t h k
        query, key = rotate(query, position, self.c), rotate(key, position, self.c)
        return self.o_proj(attention(query, key, value, mask, causal))


# region layer
class Layer(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.input_layernorm = Norm(c, dtype)
        self.self_attn = Attention(c, dtype, rngs)
        self.post_attention_layernorm = Norm(c, dtype)
        self.mlp = FeedForward(c, dtype, rngs)

    def __call__(self, x, mask=None, position=None):
        x = x + self.self_attn(self.input_layernorm(x), mask, True, position)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stack(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.layers = nnx.List(Layer(c, dtype, rngs) for _ in range(c.decoder_layers))
        self.norm = Norm(c, dtype)

    def __call__(self, x, mask=None, position=None):
        for layer in self.layers:
            x = layer(x, mask, position)
        return self.norm(x)


# region model
def positions(real):
    first = jnp.where(real.any(1), real.argmax(1), real.shape[1])
    return jnp.maximum(jnp.arange(real.shape[1]) - first[:, None], 0)


class Llama(nnx.Module):
    def __init__(self, c, dtype, rngs):
        own = {"param_dtype": dtype, "rngs": rngs}
        self.embed_tokens = nnx.Embed(c.target_vocabulary, c.model_width, **own)
        self.stack = Stack(c, dtype, rngs)
        self.lm_head = nnx.Linear(c.model_width, c.target_vocabulary, use_bias=False, **own)

    def __call__(self, ids, real=None):
        real = jnp.ones(ids.shape, bool) if real is None else real
        x = self.stack(self.embed_tokens(ids), real[:, None, None, :], positions(real))
        return self.lm_head(x)

    # region decode
    def caches(self, made):
        for layer in self.stack.layers:
            cache = made(layer.self_attn.c, self.embed_tokens.embedding.dtype)
            layer.self_attn.cache = nnx.data(cache)

    def decode_in_steps(self, ids, real, splits):
        real = jnp.ones(ids.shape, bool) if real is None else real
        self.caches(lambda c, dtype: Cache(*ids.shape, c, dtype))
        outputs, end, place = [], 0, positions(real)
        for length in splits:
            start, end = end, end + length
            outputs.append(step(self, ids[:, start:end], real, place[:, start:end]))
        self.caches(lambda c, dtype: None)
        return jnp.concatenate(outputs, 1)


@nnx.jit
def step(model, ids, real, place):
    return model(ids, real, place)


class Cache(nnx.Module):
    def __init__(self, batch, length, c, dtype):
        self.key = nnx.Cache(jnp.zeros((batch, length, c.key_value_heads, c.key_size), dtype))
        self.value = nnx.Cache(jnp.zeros((batch, length, c.key_value_heads, c.value_size), dtype))
        self.length = nnx.Cache(jnp.array(0))

    def grown(self, key, value):
        start = self.length[...]
        for held, new in ((self.key, key), (self.value, value)):
            held[...] = jax.lax.dynamic_update_slice_in_dim(held[...], new, start, 1)
        self.length[...] = start + key.shape[1]
        return start, self.key[...], self.value[...]


# region generation
def generate(model, ids, end, steps, real=None):
    real = jnp.ones(ids.shape, bool) if real is None else real
    place, ended, found = positions(real), jnp.zeros(len(ids), bool), []
    real = jnp.pad(real, ((0, 0), (0, steps)), constant_values=True)  # the final shape
    model.caches(lambda c, dtype: Cache(*real.shape, c, dtype))
    for _ in range(steps):
        logits = step(model, ids, real, place)[:, -1]  # logits after the last token
        token = jnp.where(ended, end, logits.argmax(-1))
        log_p = jnp.take_along_axis(nnx.log_softmax(logits), token[:, None], 1)[:, 0]
        found.append((token, jnp.where(ended, 0, log_p)))
        ended = ended | (token == end)
        if ended.all():
            break
        ids, place = token[:, None], place[:, -1:] + 1  # then one token at a time
    model.caches(lambda c, dtype: None)
    return tuple(jnp.stack(part, 1) for part in zip(*found, strict=True))
