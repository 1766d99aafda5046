"""The learning rate schedule."""

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype

from .framework import is_traced

__all__ = ["noam"]


def noam(
    step: jax.Array | np.ndarray | int, width: int, warmup: int, dtype: Dtype = jnp.float32
) -> jax.Array:
    """`rate(n) = d^-1/2 min(n^-1/2, n warmup^-3/2)` (NOAM).

    n is the step, counted from 1; optax schedules count the updates done:
    `lambda count: noam(count + 1, ...)`. Computed in float64 whatever jax_enable_x64 says. A traced
    step is not checked.
    """
    for name, value in (("step", step), ("width", width), ("warmup", warmup)):
        integer = np.issubdtype(jnp.result_type(value), np.integer)
        if not integer or (not is_traced(value) and (np.asarray(value) < 1).any()):
            given = value if isinstance(value, int | float) else value.tolist()
            raise ValueError(f"{name} must be an integer of at least 1; got {given}")
    with jax.enable_x64(True):
        n = jnp.asarray(step).astype(jnp.float64)
        return (width**-0.5 * jnp.minimum(n**-0.5, n * warmup**-1.5)).astype(dtype)
