"""Inverted dropout (DROPOUT)."""

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import checks

__all__ = ["Dropout"]


class Dropout(nnx.Dropout):
    """`y = x / (1 - rate)` where keep, otherwise 0.

    Without a keep mask `nnx.Dropout` draws one from its rngs, and is the identity after `model.eval()`.
    """

    def __init__(self, rate: float, *, deterministic: bool = False, rngs: nnx.Rngs | None = None) -> None:
        checks.check_keep((), "bool", (), rate)
        super().__init__(rate, deterministic=deterministic, rngs=rngs if rate else None)

    def __call__(self, x: jax.Array, keep: jax.Array | None = None) -> jax.Array:  # type: ignore[override]
        if keep is None:
            return super().__call__(x)
        checks.check_keep(keep.shape, str(keep.dtype), x.shape, self.rate)
        return jnp.where(keep, x / (1 - self.rate), 0)
