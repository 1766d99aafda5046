"""Dtypes: where half-precision dtypes (float16, bfloat16) compute in float32."""

import jax
import jax.numpy as jnp
from flax.typing import Dtype

__all__ = ["add_bias", "upcast_dtype", "upcast_half"]


def upcast_dtype(dtype: Dtype) -> jnp.dtype:
    """float32 for half-precision dtypes, otherwise the dtype itself."""
    return jnp.promote_types(dtype, jnp.float32)


def upcast_half(x: jax.Array) -> jax.Array:
    """float32 for half-precision dtypes, otherwise the array itself: softmax, normalisation and loss compute in this dtype."""
    return x.astype(upcast_dtype(x.dtype))


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """`y + bias`; half-precision dtypes add in float32 and round once, which gives the same sum.

    The gradient of the bias is the cotangent's sum over all positions, in the dtype of the addition: XLA would accumulate it in a
    half-precision dtype, where a sum stops growing once its terms are smaller than its last digit.
    """
    return (upcast_half(y) + upcast_half(bias)).astype(y.dtype)
