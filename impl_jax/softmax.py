"""Softmax over the last axis with masked entries, and the soft cap of its input."""

import jax
import jax.numpy as jnp

from reference_numpy import checks

from .precision import upcast_half

__all__ = ["soft_cap", "softmax"]


def softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """`p_j = exp(x_j - max x) / sum_i exp(x_i - max x)` over the unmasked entries of the last axis.

    Fully masked rows are 0 (EMPTY). Half-precision dtypes compute in float32. `jax.nn.softmax`
    computes NaN in such rows, even with `where`, which jax_debug_nans reports; no step here does.
    """
    if logits.shape[-1] == 0:
        raise ValueError(f"logits must have rows of length at least 1; got shape {logits.shape}")
    x = upcast_half(logits)
    if mask is not None:
        checks.check_mask(mask.shape, str(mask.dtype), logits.shape, axes="the logits")
        x = jnp.where(mask, x, -jnp.inf)
    return _softmax(x).astype(logits.dtype)


@jax.custom_jvp
def _softmax(x: jax.Array) -> jax.Array:
    largest = jnp.max(x, axis=-1, keepdims=True)
    empty = jnp.isneginf(largest)
    # The minimum equals x. It keeps XLA from fusing the subtraction with the product that computes
    # x, after which the largest entry would not become exactly 0.
    exponential = jnp.exp(jnp.minimum(x, largest) - jnp.where(empty, 0, largest))
    return exponential / jnp.where(empty, 1, jnp.sum(exponential, axis=-1, keepdims=True))


@_softmax.defjvp
def _softmax_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """`dp = p (dx - sum_j p_j dx_j)`: the backward pass needs only p.

    Where p is 1 the gradient is 0, without rounding error.
    """
    p, dx = _softmax(*primals), tangents[0]
    return p, p * (dx - jnp.sum(p * dx, axis=-1, keepdims=True))


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
    """`y = cap tanh(x / cap)`, elementwise (SOFTCAP); half-precision dtypes compute in float32.

    Raises ValueError unless cap is greater than 0.
    """
    if not cap > 0:
        raise ValueError(f"cap must be greater than 0; got {cap}")
    return (jnp.tanh(upcast_half(x) / cap) * cap).astype(x.dtype)
