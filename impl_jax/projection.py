"""The affine map of every projection."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = ["SMALL", "Joined", "Projection", "add_bias"]

SMALL = 2**20  # bytes of a matrix that stays in the cache of a core from one step to the next


class Projection(nnx.Einsum):
    """`nnx.Einsum` whose bias has the last axes of the result, and is added by `add_bias`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        bias: Any = None if self.bias is None else self.bias[...]
        x, kernel, bias = self.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)
        y = jnp.einsum(self.einsum_str, x, kernel)
        return y if bias is None else add_bias(y, bias)


class Joined(nnx.Module):
    """Several projections of one input as one product: their kernels lie side by side in a matrix, made once.

    inputs: the axes of a kernel that are the input's; all others become the result's last axis. A matrix that is not small is held with
    its shorter axis last: for a few rows of x that is what XLA multiplies fastest on CPUs.
    """

    def __init__(self, *projections: Any, inputs: int = 1) -> None:
        kernels = [part.kernel[...] for part in projections]
        kernel_dn = jnp.concatenate([kernel.reshape(math.prod(kernel.shape[:inputs]), -1) for kernel in kernels], axis=1)
        biases = [part.bias[...].reshape(-1) for part in projections if part.bias is not None]
        self.turned = kernel_dn.shape[0] < kernel_dn.shape[1] and kernel_dn.nbytes > SMALL
        self.kernel = nnx.Param(kernel_dn.T if self.turned else kernel_dn)
        self.bias = nnx.Param(jnp.concatenate(biases)) if biases else None

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        y_btn = jnp.einsum("btd,nd->btn" if self.turned else "btd,dn->btn", x_btd, self.kernel[...].astype(x_btd.dtype))
        return y_btn if self.bias is None else add_bias(y_btn, self.bias[...].astype(x_btd.dtype))


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """`y + bias`; half types add in float32 and round once, which gives the same sum.

    The gradient of the bias is the cotangent's sum over all positions, taken in the dtype of the addition: XLA would accumulate it in a
    half type, where a sum stops growing once its terms are smaller than its last digit.
    """
    wide = jnp.promote_types(y.dtype, jnp.float32)
    return (y.astype(wide) + bias.astype(wide)).astype(y.dtype)
