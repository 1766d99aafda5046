"""The affine map of every projection."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = ["Projection", "add_bias"]


class Projection(nnx.Einsum):
    """`nnx.Einsum` whose bias has the last axes of the result, and is added by `add_bias`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        bias: Any = None if self.bias is None else self.bias[...]
        x, kernel, bias = self.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)
        y = jnp.einsum(self.einsum_str, x, kernel)
        return y if bias is None else add_bias(y, bias)


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """`y + bias`; half types add in float32 and round once, which gives the same sum.

    The gradient of the bias is the cotangent's sum over all positions, taken in the dtype of the addition: XLA would accumulate it in a
    half type, where a sum stops growing once its terms are smaller than its last digit.
    """
    wide = jnp.promote_types(y.dtype, jnp.float32)
    return (y.astype(wide) + bias.astype(wide)).astype(y.dtype)
