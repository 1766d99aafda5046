"""The network of wave_torch.py, whose convolutions pad themselves; `narrow` has another dilation in the last gate."""

import jax
import jax.numpy as jnp
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs, width=6, dilations=(1, 2, 4), of_gates=(1, 2, 4)):
        def causal(dilation):
            return nnx.Conv(width, width, (2,), kernel_dilation=dilation, padding="CAUSAL", rngs=rngs)

        self.inner = nnx.Conv(2, width, (1,), rngs=rngs)
        self.filters = nnx.List([causal(dilation) for dilation in dilations])
        self.gates = nnx.List([causal(dilation) for dilation in of_gates])
        self.mix = nnx.Conv(width, width, (1,), rngs=rngs)
        self.outer = nnx.Conv(width, 1, (1,), rngs=rngs)

    def __call__(self, x):
        x = self.inner(x)
        for kept, gate in zip(self.filters, self.gates, strict=True):
            x = x + self.mix(jnp.tanh(kept(x)) * jax.nn.sigmoid(gate(x)))
        return self.outer(x)


def narrow(rngs):
    return Net(rngs, of_gates=(1, 2, 2))
