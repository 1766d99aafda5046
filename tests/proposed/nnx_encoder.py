"""A pre-norm encoder in Flax NNX."""

from flax import nnx


class Block(nnx.Module):
    def __init__(self, d_model: int, n_heads: int, d_ff: int, rngs: nnx.Rngs):
        self.ln1 = nnx.LayerNorm(d_model, rngs=rngs)
        self.mha = nnx.MultiHeadAttention(num_heads=n_heads, in_features=d_model, decode=False, rngs=rngs)
        self.ln2 = nnx.LayerNorm(d_model, rngs=rngs)
        self.fc1 = nnx.Linear(d_model, d_ff, rngs=rngs)
        self.fc2 = nnx.Linear(d_ff, d_model, rngs=rngs)

    def __call__(self, x, mask=None):
        y = self.ln1(x)
        x = x + self.mha(y, mask=mask)
        return x + self.fc2(nnx.gelu(self.fc1(self.ln2(x))))


class Encoder(nnx.Module):
    def __init__(self, num_layers, d_model, n_heads, d_ff, rngs):
        self.blocks = nnx.List([Block(d_model, n_heads, d_ff, rngs) for _ in range(num_layers)])
        self.norm = nnx.LayerNorm(d_model, rngs=rngs)

    def __call__(self, x, mask=None):
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)
