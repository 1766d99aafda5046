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
    """Returns the keep masks below these names, or None if there are none."""
    for name in names:
        keep = (keep or {}).get(name)
    return keep


class Dropout(nnx.Dropout):
    """`y = x / (1 - rate)` where kept, otherwise 0; half-precision dtypes divide in float32.

    A given keep mask applies in every mode. Otherwise, training draws one from the module's rngs. A
    module with rate 0, or whose rngs have no stream to draw from, stores no rngs.

    Drawing a mask advances the stream's counter in the module: `nnx.jit` and `compiled` write it
    back. `jax.jit` of a function that takes a module discards it, so that every call draws the same
    masks; pass such a function the module's state, and return the new state.
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
        """Draws a keep mask from 16 random bits per entry; None in evaluation or with rate 0."""
        if self.deterministic or not self.rate:
            return None
        if self.rngs is None:
            raise ValueError("dropout needs rngs in training; got None")
        size = math.prod(shape)
        bits_m = jax.random.bits(self.rngs(), (-(-size // 2),))
        word_n = jax.lax.bitcast_convert_type(bits_m, jnp.uint16).reshape(-1)
        return (word_n[:size] >= round(self.rate * 2**16)).reshape(shape)
