"""The U-Net of unet_torch.py, and `other` with the skipped channels first."""

import jax.numpy as jnp
from flax import nnx


class Up(nnx.Module):
    def __init__(self, width, out, skip_first, rngs):
        self.up = nnx.ConvTranspose(width, out, (2, 2), (2, 2), rngs=rngs)
        self.conv = nnx.Conv(2 * out, out, (3, 3), rngs=rngs)
        self.norm = nnx.GroupNorm(out, num_groups=4, epsilon=1e-5, rngs=rngs)
        self.skip_first = skip_first

    def __call__(self, x, skip):
        both = [skip, self.up(x)] if self.skip_first else [self.up(x), skip]
        return nnx.relu(self.norm(self.conv(jnp.concatenate(both, -1))))


class Net(nnx.Module):
    def __init__(self, rngs, skip_first=False):
        self.conv1 = nnx.Conv(2, 8, (3, 3), rngs=rngs)
        self.norm1 = nnx.GroupNorm(8, num_groups=4, epsilon=1e-5, rngs=rngs)
        self.conv2 = nnx.Conv(8, 16, (3, 3), rngs=rngs)
        self.norm2 = nnx.GroupNorm(16, num_groups=4, epsilon=1e-5, rngs=rngs)
        self.up = Up(16, 8, skip_first, rngs)
        self.out = nnx.Conv(8, 3, (1, 1), rngs=rngs)

    def __call__(self, x):
        wide = nnx.relu(self.norm1(self.conv1(x)))
        deep = nnx.relu(self.norm2(self.conv2(nnx.max_pool(wide, (2, 2), (2, 2)))))
        return self.out(self.up(deep, wide))


def other(rngs):
    return Net(rngs, skip_first=True)
