"""Projections that multiply kernels and inputs in int8 (INT8)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .projection import FusedProjection

__all__ = ["Int8Projection"]

LARGEST = 127  # magnitude of an int8 number here
TINY = 1e-30  # lower bound of a row's largest magnitude, so that rows of zeros have a scale


class Int8Projection(FusedProjection):
    """`y = r s (x8 [W8_1 W8_2 ..]) + [b_1 b_2 ..]`: projections of one input, for inference.

    `W8 = round(W / s)` with a scale s per output, `x8 = round(x / r)` with a scale r per token, so
    that the largest magnitude is 127. Sums are int32, the rest is float32. The kernel stores
    outputs first, which XLA multiplies faster for many tokens and no slower for few.
    """

    def __init__(self, *projections: Any, inputs: int = 1) -> None:
        super().__init__(*projections, inputs=inputs)
        kernel = self.kernel[...].astype(jnp.float32)
        kernel8_nd, scale_n1 = quantised(kernel if self.transposed else kernel.T)
        self.transposed, self.kernel = True, nnx.Param(kernel8_nd)
        self.scale = nnx.Param(scale_n1[:, 0])

    def __call__(self, x: jax.Array) -> jax.Array:
        x8_btd, scale_bt1 = quantised(jax.lax.collapse(x, x.ndim - self.inputs))
        sum_btn = jnp.einsum(
            "btd,nd->btn", x8_btd, self.kernel[...], preferred_element_type=jnp.int32
        )
        y_btn = sum_btn.astype(jnp.float32) * (scale_bt1 * self.scale[...])
        return y_btn if self.bias is None else y_btn + self.bias[...]


def quantised(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`x8 = round(x / r)` and the scale `r = max |x| / 127` over the last axis, `... 1`."""
    scale = jnp.maximum(jnp.abs(x).max(axis=-1, keepdims=True), TINY) / LARGEST
    return jnp.round(x / scale).astype(jnp.int8), scale
