"""Several projections of one input as one matrix product."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..projection import add_bias

__all__ = ["SMALL", "FusedProjection"]

SMALL = 2**20  # bytes of a matrix that stays in a core's cache from one step to the next


class FusedProjection(nnx.Module):
    """`y = x [W_1 W_2 ...] + [b_1 b_2 ...]`: the kernels are concatenated once, to one matrix.

    inputs: the number of contracted axes, the last ones of x. transposed: large matrices are stored
    with their shorter axis last, which XLA multiplies fastest on CPUs for a few rows of x.
    """

    def __init__(self, *projections: Any, inputs: int = 1) -> None:
        kernels = [part.kernel[...] for part in projections]
        kernel_dn = jnp.concatenate(
            [kernel.reshape(math.prod(kernel.shape[:inputs]), -1) for kernel in kernels], axis=1
        )
        biases = [part.bias[...].reshape(-1) for part in projections if part.bias is not None]
        self.transposed = kernel_dn.shape[0] < kernel_dn.shape[1] and kernel_dn.nbytes > SMALL
        self.kernel = nnx.Param(kernel_dn.T if self.transposed else kernel_dn)
        self.bias = nnx.Param(jnp.concatenate(biases)) if biases else None
        self.inputs, self.shapes = inputs, tuple(kernel.shape[inputs:] for kernel in kernels)

    def __call__(self, x: jax.Array) -> jax.Array:
        x_btd = jax.lax.collapse(x, x.ndim - self.inputs)
        y_btn = jnp.einsum(
            "btd,nd->btn" if self.transposed else "btd,dn->btn",
            x_btd,
            self.kernel[...].astype(x.dtype),
        )
        return y_btn if self.bias is None else add_bias(y_btn, self.bias[...].astype(x.dtype))

    def separate(self, x: jax.Array) -> list[jax.Array]:
        """Returns the result of each projection, with the last axes of its kernel."""
        ends = itertools.accumulate(map(math.prod, self.shapes[:-1]))
        parts = jnp.split(self(x), list(ends), axis=-1)
        return [
            part.reshape(part.shape[:2] + shape)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]
