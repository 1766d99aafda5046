# region imports
import math

from keras import Layer, ops
from keras.layers import Dense, Embedding, LayerNormalization


# region feed_forward
class FeedForward(Layer):
    def __init__(self, width, hidden, **kwargs):
        super().__init__(**kwargs)
        self.c_fc = Dense(hidden, dtype=self.dtype_policy)
        self.c_proj = Dense(width, dtype=self.dtype_policy)

    def call(self, x):
        return self.c_proj(ops.gelu(self.c_fc(x), approximate=True))


# region dot_product
def attention(query, key, value, mask=None, causal=False):
    logits = ops.einsum("bthk,bshk->bhts", query, key) / math.sqrt(query.shape[-1])
    target, source = ops.shape(logits)[-2:]
    seen = ops.ones((target, source), "bool")
    if causal:
        seen = ops.tril(seen, source - target)
    if mask is not None:
        seen = ops.logical_and(seen, mask)
    weights = ops.softmax(ops.where(seen, logits, ops.cast(-math.inf, logits.dtype)))
    # A fully masked query gives 0, not NaN.
    weights = ops.where(seen, weights, ops.zeros_like(weights))
    return ops.einsum("bhts,bshe->bthe", weights, value)


# region multi_head
class Attention(Layer):
    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            Dense(width, dtype=self.dtype_policy) for _ in range(4)
        )

    def split(self, x):  # b t (h k) -> b t h k
        batch, length, width = ops.shape(x)
        return ops.reshape(x, (batch, length, self.heads, width // self.heads))

    def call(self, x, memory, mask=None, causal=False):
        query, key, value = map(self.split, (self.query(x), self.key(memory), self.value(memory)))
        mixed = attention(query, key, value, mask, causal)
        return self.out(ops.reshape(mixed, ops.shape(x)))  # b t h k -> b t (h k)


# region block
class Block(Layer):
    def __init__(self, width, heads, hidden, epsilon, **kwargs):
        super().__init__(**kwargs)
        self.ln_1, self.ln_2 = (
            LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy) for _ in range(2)
        )
        self.attn = Attention(width, heads, dtype=self.dtype_policy)
        self.mlp = FeedForward(width, hidden, dtype=self.dtype_policy)

    def call(self, x, mask=None):
        y = self.ln_1(x)
        x = x + self.attn(y, y, mask=mask, causal=True)
        return x + self.mlp(self.ln_2(x))


# region stack
class Stack(Layer):
    def __init__(self, layers, width, heads, hidden, epsilon, **kwargs):
        super().__init__(**kwargs)
        sizes = width, heads, hidden, epsilon
        self.h = [Block(*sizes, dtype=self.dtype_policy) for _ in range(layers)]
        self.ln_f = LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy)

    def call(self, x, mask=None):
        for block in self.h:
            x = block(x, mask=mask)
        return self.ln_f(x)


# region model
def positions(real):
    length = ops.shape(real)[1]
    first = ops.where(ops.any(real, 1), ops.argmax(ops.cast(real, "int32"), 1), length)
    return ops.maximum(ops.arange(length) - first[:, None], 0)


class GPT2(Layer):
    def __init__(self, vocabulary, length, layers, width, heads, hidden, epsilon, **kwargs):
        super().__init__(**kwargs)
        self.wte = Embedding(vocabulary, width, dtype=self.dtype_policy)
        self.wpe = Embedding(length, width, dtype=self.dtype_policy)
        self.stack = Stack(layers, width, heads, hidden, epsilon, dtype=self.dtype_policy)

    def call(self, ids, real=None):
        real = ops.ones_like(ids, "bool") if real is None else real
        x = self.wte(ids) + self.wpe(positions(real))
        x = self.stack(x, mask=real[:, None, None, :])
        return ops.matmul(x, ops.transpose(self.wte.embeddings))
