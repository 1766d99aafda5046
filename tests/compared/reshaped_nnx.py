"""Attention in Flax with the weights of attention_torch.py's `seeded`, whose kernels are outputs by inputs."""

from attention_torch import seeded
from flax import nnx


class Attention(nnx.Module):
    """wrong: reshapes the kernels of queries and keys without transposing them."""

    def __init__(self, rngs: nnx.Rngs, wrong: bool = False):
        self.norm = nnx.LayerNorm(12, epsilon=1e-5, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(3, 12, decode=False, rngs=rngs)
        held = {name: tensor.numpy() for name, tensor in seeded().state_dict().items()}
        for name, layer in (("q", self.attn.query), ("k", self.attn.key), ("v", self.attn.value)):
            kernel = held[f"{name}_proj.weight"]
            layer.kernel[...] = (kernel if wrong and name != "v" else kernel.T).reshape(12, 3, 4)
            layer.bias[...] = held[f"{name}_proj.bias"].reshape(3, 4)
        self.attn.out.kernel[...], self.attn.out.bias[...] = held["out_proj.weight"].T.reshape(3, 4, 12), held["out_proj.bias"]

    def __call__(self, x):
        return self.attn(self.norm(x))
