"""Dtypes: half-precision dtypes (float16, bfloat16) compute in float32 where it matters."""

import jax
import jax.numpy as jnp
from flax.typing import Dtype

__all__ = ["upcast_dtype", "upcast_half", "upcast_to"]


def upcast_dtype(dtype: Dtype) -> jnp.dtype:
    """Returns float32 for half-precision dtypes, otherwise the dtype itself."""
    return jnp.promote_types(dtype, jnp.float32)


def upcast_half(x: jax.Array) -> jax.Array:
    """Returns a half-precision array as float32, and any other array unchanged.

    Softmax, normalization and loss compute in this dtype.
    """
    return x.astype(upcast_dtype(x.dtype))


def upcast_to(x: jax.Array, dtype: Dtype) -> jax.Array:
    """Casts x to dtype if that is wider; losses are computed in the dtype of the parameters."""
    return x.astype(jnp.promote_types(x.dtype, dtype))
