"""The affine map of every projection."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .precision import add_bias

__all__ = ["Projection"]


class Projection(nnx.Einsum):
    """`y = x W + b`, the contraction being that of the axis letters.

    `nnx.Einsum` whose bias has the last axes of the result, and is added by `add_bias`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        bias: Any = None if self.bias is None else self.bias[...]
        x, kernel, bias = self.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)
        y = jnp.einsum(self.einsum_str, x, kernel)
        return y if bias is None else add_bias(y, bias)
