"""A compact encoder block in Flax Linen; and an encoder on token ids, whose embedding is scaled in a module of its own."""

import flax.linen as nn
import jax.numpy as jnp


class EncoderBlock(nn.Module):
    input_dim: int
    num_heads: int
    dim_feedforward: int
    dropout_prob: float

    @nn.compact
    def __call__(self, x, mask=None, train=True):
        y = nn.MultiHeadDotProductAttention(num_heads=self.num_heads, name="self_attn")(x, mask=mask)
        x = nn.LayerNorm(name="norm1", epsilon=1e-5)(x + nn.Dropout(self.dropout_prob)(y, deterministic=not train))
        y = nn.Dense(self.input_dim, name="linear2")(nn.relu(nn.Dense(self.dim_feedforward, name="linear1")(x)))
        return nn.LayerNorm(name="norm2", epsilon=1e-5)(x + nn.Dropout(self.dropout_prob)(y, deterministic=not train))


class Embeddings(nn.Module):
    vocab_size: int
    d_model: int

    @nn.compact
    def __call__(self, ids):
        return nn.Embed(self.vocab_size, self.d_model)(ids) * self.d_model**0.5


class TokenEncoder(nn.Module):
    vocab_size: int
    d_model: int
    num_heads: int
    dim_feedforward: int
    num_layers: int
    dropout_prob: float

    @nn.compact
    def __call__(self, ids, mask=None, train=False):
        x = Embeddings(self.vocab_size, self.d_model, name="tokens")(ids)
        angle = jnp.arange(ids.shape[1])[:, None] / 10000 ** (jnp.arange(0, self.d_model, 2) / self.d_model)
        x = x + jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(ids.shape[1], -1).astype(x.dtype)
        for _ in range(self.num_layers):
            x = EncoderBlock(self.d_model, self.num_heads, self.dim_feedforward, self.dropout_prob)(x, mask, train)
        return x


class RowNorm(nn.Module):
    """One row, without a batch."""

    d_model: int

    @nn.compact
    def __call__(self, x):
        scale, offset = (
            self.param(name, init, (self.d_model,)) for name, init in (("scale", nn.initializers.ones), ("bias", nn.initializers.zeros))
        )
        length, width = x.shape
        centred = x - x.mean(-1, keepdims=True)
        return (centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * scale + offset).reshape(length, width)
