"""Softmax over the last axis, with masked entries."""

import jax
import jax.numpy as jnp

from reference_numpy import checks

__all__ = ["softmax"]


def softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the last axis, where masked entries count as absent.

    `jax.nn.softmax` gives NaN in a row without an entry; with `where` it hides them, which jax_debug_nans still finds. Here no step
    makes one, forward or backward. The maximum only keeps exp in range: the result does not depend on it, so no gradient flows there.
    """
    if logits.shape[-1] == 0:
        raise ValueError(f"logits must have rows of length at least 1; got shape {logits.shape}")
    x = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if mask is not None:
        checks.check_mask(mask.shape, str(mask.dtype), logits.shape, axes="the logits")
        x = jnp.where(mask, x, -jnp.inf)
    largest = jax.lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))
    empty = jnp.isneginf(largest)
    exponential = jnp.exp(x - jnp.where(empty, 0, largest))
    denominator = jnp.where(empty, 1, jnp.sum(exponential, axis=-1, keepdims=True))
    return (exponential / denominator).astype(logits.dtype)
