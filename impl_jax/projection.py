"""The affine map of every projection."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .precision import upcast_half

__all__ = ["Projection", "add_bias"]


class Projection(nnx.Einsum):
    """`y = x W + b`, the contraction being that of the axis letters.

    `nnx.Einsum` whose bias has the last axes of the result, and is added by `add_bias`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        bias: Any = None if self.bias is None else self.bias[...]
        x, kernel, bias = self.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)
        y = jnp.einsum(self.einsum_str, x, kernel)
        return y if bias is None else add_bias(y, bias)


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """`y + bias`; half-precision dtypes add in float32 and round once, which gives the same sum.

    The gradient of the bias is the cotangent's sum over all positions, in the dtype of the addition: XLA would accumulate it in a
    half-precision dtype, where a sum stops growing once its terms are smaller than its last digit.
    """
    return (upcast_half(y) + upcast_half(bias)).astype(y.dtype)
