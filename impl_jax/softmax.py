"""Softmax over the last axis, with masked entries."""

import jax
import jax.numpy as jnp

from reference_numpy import checks

__all__ = ["softmax"]


def softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the last axis, where masked entries count as absent.

    `jax.nn.softmax` with `where` gives EMPTY rows 0, and its derivative rule gives them zero gradient; adding a large negative number
    to masked logits would give neither.
    """
    if mask is not None:
        checks.check_mask(mask.shape, str(mask.dtype), logits.shape, axes="the logits")
    wide = jnp.promote_types(logits.dtype, jnp.float32)
    return jax.nn.softmax(logits.astype(wide), where=mask).astype(logits.dtype)
