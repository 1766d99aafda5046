"""Layer normalisation."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import checks

from .framework import beside
from .precision import upcast_half

__all__ = ["LayerNorm"]


class LayerNorm(nnx.Module):
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d (NORM).

    Half-precision dtypes compute in float32. The variance is the mean of the centred squares;
    `nnx.LayerNorm` takes `E[x^2] - E[x]^2` by default.
    """

    def __init__(self, width: int, epsilon: float, *, param_dtype: Dtype = jnp.float32) -> None:
        self.scale = nnx.Param(jnp.ones(width, param_dtype))
        self.offset = nnx.Param(jnp.zeros(width, param_dtype))
        self.epsilon = epsilon

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        checks.check_features("x", x_btd.shape, self.scale.shape[0])
        wide_btd = upcast_half(x_btd)
        centred_btd = wide_btd - wide_btd.mean(axis=-1, keepdims=True)
        variance_bt1 = jnp.square(centred_btd).mean(axis=-1, keepdims=True)
        factor_btd = jax.lax.rsqrt(variance_bt1 + self.epsilon) * beside(self.scale[...], x_btd)
        return (centred_btd * factor_btd + beside(self.offset[...], x_btd)).astype(x_btd.dtype)
