"""A decoder layer in Flax NNX, with Hugging Face's names."""

import jax
import jax.numpy as jnp
from flax import nnx


class Attention(nnx.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads, head_dim, rope_theta, rngs):
        self.num_heads, self.num_kv_heads, self.head_dim, self.rope_theta = num_heads, num_kv_heads, head_dim, rope_theta
        self.q_proj = nnx.Linear(hidden_size, num_heads * head_dim, use_bias=False, rngs=rngs)
        self.k_proj = nnx.Linear(hidden_size, num_kv_heads * head_dim, use_bias=False, rngs=rngs)
        self.v_proj = nnx.Linear(hidden_size, num_kv_heads * head_dim, use_bias=False, rngs=rngs)
        self.o_proj = nnx.Linear(num_heads * head_dim, hidden_size, use_bias=False, rngs=rngs)
        self.q_norm = nnx.RMSNorm(head_dim, rngs=rngs)
        self.k_norm = nnx.RMSNorm(head_dim, rngs=rngs)

    def __call__(self, x):
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).reshape(batch, length, self.num_heads, self.head_dim))
        k = self.k_norm(self.k_proj(x).reshape(batch, length, self.num_kv_heads, self.head_dim))
        v = self.v_proj(x).reshape(batch, length, self.num_kv_heads, self.head_dim)
        q, k = apply_rope(q, self.rope_theta), apply_rope(k, self.rope_theta)
        k, v = (jnp.repeat(y, self.num_heads // self.num_kv_heads, axis=2) for y in (k, v))
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(self.head_dim)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)
        return self.o_proj(out.reshape(batch, length, -1))


def apply_rope(x, theta):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / theta ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


class MLP(nnx.Module):
    def __init__(self, hidden_size, intermediate_size, rngs):
        self.gate_proj = nnx.Linear(hidden_size, intermediate_size, use_bias=False, rngs=rngs)
        self.up_proj = nnx.Linear(hidden_size, intermediate_size, use_bias=False, rngs=rngs)
        self.down_proj = nnx.Linear(intermediate_size, hidden_size, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.down_proj(nnx.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nnx.Module):
    def __init__(self, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, rope_theta=10000.0, *, rngs):
        self.self_attn = Attention(hidden_size, num_heads, num_kv_heads, head_dim, rope_theta, rngs)
        self.mlp = MLP(hidden_size, intermediate_size, rngs)
        self.input_layernorm = nnx.RMSNorm(hidden_size, rngs=rngs)
        self.post_attention_layernorm = nnx.RMSNorm(hidden_size, rngs=rngs)

    def __call__(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))
