"""The models of stems_torch.py in Flax NNX, channels last. first: `Dense` returns its channels first."""

import jax
import jax.numpy as jnp
from flax import nnx
from sinusoids import sinusoids


class Block(nnx.Module):
    def __init__(self, width, planted, rngs):
        self.norm1 = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, epsilon=1e-2 if planted == "epsilon" else 1e-5, rngs=rngs)
        self.query, self.key, self.value, self.output = (nnx.Linear(width, width, rngs=rngs) for _ in range(4))
        self.up, self.down = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)
        self.scale, self.approximate = (1.0 if planted == "scale" else 0.5), planted == "gelu"

    def __call__(self, x):
        b, t, d = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).reshape(b, t, d // 4, 4).transpose(0, 2, 1, 3) for part in (self.query, self.key, self.value))
        y = jax.nn.softmax(q @ k.swapaxes(-1, -2) * self.scale, -1) @ v
        x = x + self.output(y.transpose(0, 2, 1, 3).reshape(b, t, d))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x)), approximate=self.approximate))


class Series(nnx.Module):
    def __init__(self, rngs, width=12, planted="", turned=False):
        dilation = 2 if planted == "dilation" else 1
        self.conv1 = nnx.Conv(5, width, (3,), padding="CAUSAL", kernel_dilation=dilation, rngs=rngs)
        self.conv2 = nnx.Conv(width, width, (3,), 2, padding=((1, 1),), rngs=rngs)
        self.block, self.turned, self.interleaved = Block(width, planted, rngs), turned, planted == "positions"

    def __call__(self, x):
        x = jax.nn.gelu(self.conv2(jax.nn.gelu(self.conv1(x), approximate=False)), approximate=False)
        x = self.block(x + jnp.asarray(sinusoids(*x.shape[1:], self.interleaved), x.dtype))
        return x.swapaxes(1, 2) if self.turned else x


class Dense(nnx.Module):
    def __init__(self, rngs, width=12, planted="", turned=False, first=False):
        self.down = nnx.Conv(4, width, (3, 3), 2, padding=1, rngs=rngs)
        self.norm = nnx.GroupNorm(width, num_groups=2, epsilon=1e-2 if planted == "epsilon" else 1e-5, rngs=rngs)
        self.up = nnx.ConvTranspose(width, width, (2, 2), (2, 2), rngs=rngs)
        self.out = nnx.Conv(width + 4, 8, (1, 1), rngs=rngs)
        self.turned, self.first, self.order = turned, first, -1 if planted == "skip" else 1

    def __call__(self, x):
        y = jnp.maximum(self.up(jnp.maximum(self.norm(self.down(x)), 0)), 0)
        x = self.out(jnp.concatenate([y, x][:: self.order], -1))
        x = x.swapaxes(1, 2) if self.turned else x
        return x.transpose(0, 3, 1, 2) if self.first else x
