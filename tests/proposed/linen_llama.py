"""A decoder's layer in Flax Linen, with Meta's names."""

import flax.linen as nn
import jax.numpy as jnp
from nnx_llama import apply_rope


class Attention(nn.Module):
    n_heads: int
    n_kv_heads: int
    head_dim: int

    @nn.compact
    def __call__(self, x, mask=None):
        batch, length, dim = x.shape
        q = nn.Dense(self.n_heads * self.head_dim, use_bias=False, name="wq")(x).reshape(batch, length, self.n_heads, -1)
        k = nn.Dense(self.n_kv_heads * self.head_dim, use_bias=False, name="wk")(x).reshape(batch, length, self.n_kv_heads, -1)
        v = nn.Dense(self.n_kv_heads * self.head_dim, use_bias=False, name="wv")(x).reshape(batch, length, self.n_kv_heads, -1)
        q, k = apply_rope(q, 10000.0), apply_rope(k, 10000.0)
        k, v = (jnp.repeat(y, self.n_heads // self.n_kv_heads, axis=2) for y in (k, v))
        causal = jnp.tril(jnp.ones((1, 1, length, length), bool))
        out = nn.dot_product_attention(q, k, v, mask=causal if mask is None else causal & mask)
        return nn.Dense(dim, use_bias=False, name="wo")(out.reshape(batch, length, -1))


class FeedForward(nn.Module):
    mlp_dim: int

    @nn.compact
    def __call__(self, x):
        gated = nn.silu(nn.Dense(self.mlp_dim, use_bias=False, name="w1")(x)) * nn.Dense(self.mlp_dim, use_bias=False, name="w3")(x)
        return nn.Dense(x.shape[-1], use_bias=False, name="w2")(gated)


class TransformerBlock(nn.Module):
    n_heads: int
    n_kv_heads: int
    head_dim: int
    mlp_dim: int
    norm_eps: float = 1e-5

    @nn.compact
    def __call__(self, x, mask=None):
        attention = Attention(self.n_heads, self.n_kv_heads, self.head_dim, name="attention")
        h = x + attention(nn.RMSNorm(epsilon=self.norm_eps, name="attention_norm")(x), mask)
        return h + FeedForward(self.mlp_dim, name="feed_forward")(nn.RMSNorm(epsilon=self.norm_eps, name="ffn_norm")(h))
