"""A translator in Flax NNX with learned positions in encoder and decoder."""

import jax.numpy as jnp
from flax import nnx


class FeedForward(nnx.Module):
    def __init__(self, d_model, d_ff, *, rngs):
        self.up = nnx.Linear(d_model, d_ff, rngs=rngs)
        self.down = nnx.Linear(d_ff, d_model, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))


class EncoderLayer(nnx.Module):
    def __init__(self, d_model, num_heads, d_ff, *, rngs):
        self.attention = nnx.MultiHeadAttention(num_heads, d_model, decode=False, rngs=rngs)
        self.feed_forward = FeedForward(d_model, d_ff, rngs=rngs)
        self.norm1 = nnx.LayerNorm(d_model, rngs=rngs)
        self.norm2 = nnx.LayerNorm(d_model, rngs=rngs)

    def __call__(self, x, mask):
        x = self.norm1(x + self.attention(x, mask=mask))
        return self.norm2(x + self.feed_forward(x))


class DecoderLayer(nnx.Module):
    def __init__(self, d_model, num_heads, d_ff, *, rngs):
        self.self_attention = nnx.MultiHeadAttention(num_heads, d_model, decode=False, rngs=rngs)
        self.cross_attention = nnx.MultiHeadAttention(num_heads, d_model, decode=False, rngs=rngs)
        self.feed_forward = FeedForward(d_model, d_ff, rngs=rngs)
        self.norm1 = nnx.LayerNorm(d_model, rngs=rngs)
        self.norm2 = nnx.LayerNorm(d_model, rngs=rngs)
        self.norm3 = nnx.LayerNorm(d_model, rngs=rngs)

    def __call__(self, y, memory, self_mask, cross_mask):
        y = self.norm1(y + self.self_attention(y, mask=self_mask))
        y = self.norm2(y + self.cross_attention(y, memory, mask=cross_mask))
        return self.norm3(y + self.feed_forward(y))


class Embedder(nnx.Module):
    def __init__(self, vocab_size, max_len, d_model, *, rngs):
        self.token = nnx.Embed(vocab_size, d_model, rngs=rngs)
        self.position = nnx.Embed(max_len, d_model, rngs=rngs)

    def __call__(self, ids):
        return self.token(ids) + self.position(jnp.arange(ids.shape[1]))[None]


class Seq2Seq(nnx.Module):
    def __init__(self, src_vocab_size, tgt_vocab_size, d_model, num_heads, num_layers, d_ff, max_len=128, pad_id=0, *, rngs: nnx.Rngs):
        self.pad_id = pad_id
        self.src_embed = Embedder(src_vocab_size, max_len, d_model, rngs=rngs)
        self.tgt_embed = Embedder(tgt_vocab_size, max_len, d_model, rngs=rngs)
        self.encoder = nnx.List([EncoderLayer(d_model, num_heads, d_ff, rngs=rngs) for _ in range(num_layers)])
        self.decoder = nnx.List([DecoderLayer(d_model, num_heads, d_ff, rngs=rngs) for _ in range(num_layers)])
        self.out = nnx.Linear(d_model, tgt_vocab_size, rngs=rngs)

    def __call__(self, src, tgt):
        src_mask = (src != self.pad_id)[:, None, None, :]
        tgt_mask = (tgt != self.pad_id)[:, None, None, :] & jnp.tril(jnp.ones((1, 1, tgt.shape[1], tgt.shape[1]), bool))
        x = self.src_embed(src)
        for layer in self.encoder:
            x = layer(x, src_mask)
        y = self.tgt_embed(tgt)
        for layer in self.decoder:
            y = layer(y, x, tgt_mask, src_mask)
        return self.out(y)
