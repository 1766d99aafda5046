"""A decoder layer in Keras, with a fused gate."""

import keras
from keras import layers, ops


def apply_rope(x, theta=10000.0):
    half = x.shape[-1] // 2
    angle = ops.arange(ops.shape(x)[1], dtype=x.dtype)[:, None] / theta ** (ops.arange(half, dtype=x.dtype) / half)
    cos, sin = ops.cos(angle)[None, :, None], ops.sin(angle)[None, :, None]
    first, second = x[..., :half], x[..., half:]
    return ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Attention(layers.Layer):
    def __init__(self, hidden_size, num_heads, num_kv_heads, head_dim, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.q_proj = layers.Dense(num_heads * head_dim, use_bias=False)
        self.k_proj, self.v_proj = (layers.Dense(num_kv_heads * head_dim, use_bias=False) for _ in range(2))
        self.o_proj = layers.Dense(hidden_size, use_bias=False)

    def call(self, x):
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        q = apply_rope(ops.reshape(self.q_proj(x), (batch, length, self.num_heads, self.head_dim)))
        k = apply_rope(ops.reshape(self.k_proj(x), (batch, length, self.num_kv_heads, self.head_dim)))
        v = ops.reshape(self.v_proj(x), (batch, length, self.num_kv_heads, self.head_dim))
        k, v = (ops.repeat(y, self.num_heads // self.num_kv_heads, axis=2) for y in (k, v))
        scores = ops.einsum("bthd,bshd->bhts", q, k) / self.head_dim**0.5
        causal = ops.tril(ops.ones((length, length)))
        weights = ops.softmax(ops.where(causal > 0, scores, -1e9))
        out = ops.einsum("bhts,bshd->bthd", weights, v)
        return self.o_proj(ops.reshape(out, (batch, length, self.num_heads * self.head_dim)))


class MLP(layers.Layer):
    def __init__(self, hidden_size, intermediate_size, **kwargs):
        super().__init__(**kwargs)
        self.gate_up_proj = layers.Dense(2 * intermediate_size, use_bias=False)
        self.down_proj = layers.Dense(hidden_size, use_bias=False)

    def call(self, x):
        gate, up = ops.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(ops.silu(gate) * up)


class DecoderLayer(keras.layers.Layer):
    def __init__(self, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, **kwargs):
        super().__init__(**kwargs)
        self.self_attn = Attention(hidden_size, num_heads, num_kv_heads, head_dim)
        self.mlp = MLP(hidden_size, intermediate_size)
        self.input_layernorm = layers.RMSNormalization(epsilon=1e-6)
        self.post_attention_layernorm = layers.RMSNormalization(epsilon=1e-6)

    def call(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))
