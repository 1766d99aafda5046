# region imports
import math

import jax.numpy as jnp
from flax import nnx


# region feed_forward
class FeedForward(nnx.Module):
    def __init__(self, width, hidden, dtype, rngs):
        self.c_fc = nnx.Linear(width, hidden, param_dtype=dtype, rngs=rngs)
        self.c_proj = nnx.Linear(hidden, width, param_dtype=dtype, rngs=rngs)

    def __call__(self, x):
        return self.c_proj(nnx.gelu(self.c_fc(x), approximate=True))


# region dot_product
def attention(query, key, value, mask=None, causal=False):
    logits = jnp.einsum("bthk,bshk->bhts", query, key) / math.sqrt(query.shape[-1])
    target, source = logits.shape[-2:]
    seen = jnp.ones((target, source), bool)
    if causal:
        seen = jnp.tril(seen, source - target)
    if mask is not None:
        seen = seen & mask
    weights = nnx.softmax(jnp.where(seen, logits, jnp.finfo(logits.dtype).min))
    return jnp.einsum("bhts,bshe->bthe", weights, value)


# region multi_head
class Attention(nnx.Module):
    def __init__(self, width, heads, dtype, rngs):
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nnx.Linear(width, width, param_dtype=dtype, rngs=rngs) for _ in range(4)
        )

    def split(self, x):  # b t (h k) -> b t h k
        return x.reshape(*x.shape[:-1], self.heads, -1)

    def __call__(self, x, memory, mask=None, causal=False):
        query, key, value = map(self.split, (self.query(x), self.key(memory), self.value(memory)))
        mixed = attention(query, key, value, mask, causal)
        return self.out(mixed.reshape(x.shape))  # b t h k -> b t (h k)


# region block
def layer_norm(width, epsilon, dtype, rngs):
    return nnx.LayerNorm(
        width, epsilon=epsilon, use_fast_variance=False, param_dtype=dtype, rngs=rngs
    )


class Block(nnx.Module):
    def __init__(self, width, heads, hidden, epsilon, dtype, rngs):
        self.ln_1, self.ln_2 = (layer_norm(width, epsilon, dtype, rngs) for _ in range(2))
        self.attn = Attention(width, heads, dtype, rngs)
        self.mlp = FeedForward(width, hidden, dtype, rngs)

    def __call__(self, x, mask=None):
        y = self.ln_1(x)
        x = x + self.attn(y, y, mask, causal=True)
        return x + self.mlp(self.ln_2(x))


# region stack
class Stack(nnx.Module):
    def __init__(self, layers, width, heads, hidden, epsilon, dtype, rngs):
        blocks = [Block(width, heads, hidden, epsilon, dtype, rngs) for _ in range(layers)]
        self.h = nnx.List(blocks)
        self.ln_f = layer_norm(width, epsilon, dtype, rngs)

    def __call__(self, x, mask=None):
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x)


# region model
def positions(real):
    length = real.shape[1]
    first = jnp.where(real.any(1), real.argmax(1), length)
    return jnp.maximum(jnp.arange(length) - first[:, None], 0)


class GPT2(nnx.Module):
    def __init__(self, vocabulary, length, layers, width, heads, hidden, epsilon, dtype, rngs):
        self.wte = nnx.Embed(vocabulary, width, param_dtype=dtype, rngs=rngs)
        self.wpe = nnx.Embed(length, width, param_dtype=dtype, rngs=rngs)
        self.stack = Stack(layers, width, heads, hidden, epsilon, dtype, rngs)

    def __call__(self, ids, real=None):
        real = jnp.ones(ids.shape, bool) if real is None else real
        x = self.wte(ids) + self.wpe(positions(real))
        x = self.stack(x, real[:, None, None, :])
        return self.wte.attend(x)
