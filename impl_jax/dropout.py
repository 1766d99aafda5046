"""Inverted dropout (DROPOUT)."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import checks

from .precision import upcast_half

__all__ = ["Dropout"]

Keep = Mapping[str, Any]  # keep masks by site


def part(keep: Keep | None, *names: str) -> Any:
    """The keep masks below these names; None if there are none."""
    for name in names:
        keep = (keep or {}).get(name)
    return keep


class Dropout(nnx.Dropout):
    """`y = x / (1 - rate)` where keep, otherwise 0; half-precision dtypes divide in float32.

    A given keep mask is applied in every mode. Otherwise one is drawn from the module's rngs, in
    training. A module with rate 0, or whose rngs have no stream to draw from, holds no rngs.

    A drawn mask changes the module, whose stream counts its draws: `nnx.jit` and `compiled` write
    the count back. `jax.jit` of a function that takes a module loses it, and every call draws the
    same masks; give such a function the module's state, and return that.
    """

    def __init__(
        self, rate: float, *, deterministic: bool = False, rngs: nnx.Rngs | None = None
    ) -> None:
        checks.check_keep((), "bool", (), rate)
        drawn = rngs is not None and rate and ("dropout" in rngs or "default" in rngs)
        super().__init__(rate, deterministic=deterministic, rngs=rngs if drawn else None)

    def __call__(  # type: ignore[override]
        self, x: jax.Array, keep: jax.Array | None = None
    ) -> jax.Array:
        keep = self.draw(x.shape) if keep is None else keep
        if keep is None:
            return x
        checks.check_keep(keep.shape, str(keep.dtype), x.shape, self.rate)
        return jnp.where(keep, upcast_half(x) / (1 - self.rate), 0).astype(x.dtype)

    def draw(self, shape: tuple[int, ...]) -> jax.Array | None:
        """A random keep mask, of 16 random bits an entry; None in evaluation and with rate 0."""
        if self.deterministic or not self.rate:
            return None
        if self.rngs is None:
            raise ValueError("dropout in training needs rngs; got None")
        size = math.prod(shape)
        bits_m = jax.random.bits(self.rngs(), (-(-size // 2),))
        word_n = jax.lax.bitcast_convert_type(bits_m, jnp.uint16).reshape(-1)
        return (word_n[:size] >= round(self.rate * 2**16)).reshape(shape)
