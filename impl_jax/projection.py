"""The affine map used by attention, feed-forward and logits."""

import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from .framework import aligned, einsum, has_explicit_axes
from .precision import upcast_half

__all__ = ["Projection", "add_bias"]


class Projection(nnx.Einsum):
    """`y = x W + b`, contracted as the axis letters specify.

    An `nnx.Einsum` whose bias has the last axes of the result and is added by `add_bias`. Letters
    of W that the result lacks come first and are contracted; they define the fans of INIT.
    """

    def __init__(
        self, subscripts: str, sizes: Mapping[str, int], bias: bool = True, *,
        dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        _, letters, result = re.split(",|->", subscripts)
        shape, axes = tuple(sizes[letter] for letter in letters), range(len(letters))
        inputs = len({*letters} - {*result})
        super().__init__(
            subscripts, shape, shape[inputs:] if bias else None,
            kernel_init=nnx.initializers.xavier_uniform(axes[:inputs], axes[inputs:]),
            dtype=dtype, param_dtype=param_dtype, rngs=rngs,
        )  # fmt: skip
        self.inputs = inputs

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        x, kernel, bias = self.promoted(x)
        if self.inputs > 1 and not has_explicit_axes(kernel):
            # XLA on CPUs would copy a kernel of which two axes are contracted.
            x = jax.lax.collapse(x, x.ndim - self.inputs)
            y = jnp.tensordot(x, jax.lax.collapse(kernel, 0, self.inputs), axes=1)
        else:
            y = einsum(self.einsum_str, x, kernel)
        return y if bias is None else add_bias(y, bias)

    def promoted(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns x, kernel and bias in the dtype of the computation."""
        bias = None if self.bias is None else self.bias[...]
        return self.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """`y + bias`; half-precision dtypes add in float32 and round once, which gives the same sum.

    The gradient of the bias then adds up in float32 too; in half precision, a sum stops growing
    once its terms are smaller than its last digit.
    """
    return (upcast_half(y) + upcast_half(aligned(bias, y))).astype(y.dtype)
