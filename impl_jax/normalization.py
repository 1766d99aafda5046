"""Layer normalization and root-mean-square normalization (NORM)."""

from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .framework import aligned
from .precision import upcast_half
from .projection import add_bias
from .values import Own

__all__ = ["LayerNorm", "norm", "RMSNorm"]  # noqa: RUF022 - the order of the twins


class Norm(nnx.Module):
    """The part common to both norms: scale and offset, if they have them.

    width: size of the last axis of `b t d`; a tuple names the last axes of queries or keys,
    `b t h k`. one_plus_scale: multiplies by `1 + scale`, which starts at 0. Half-precision dtypes
    compute in float32 up to and including the offset, or with cast_before_scale up to the scale.
    """

    def __init__(
        self, width: int | tuple[int, ...], epsilon: float, offset: bool = True,
        one_plus_scale: bool = False, cast_before_scale: bool = False, scale: bool = True,
        *, param_dtype: Dtype = jnp.float32,
    ) -> None:  # fmt: skip
        first = jnp.zeros if one_plus_scale else jnp.ones
        self.scale = nnx.Param(first(width, param_dtype)) if scale else None
        self.offset = nnx.Param(jnp.zeros(width, param_dtype)) if offset else None
        self.axes = (-1,) if isinstance(width, int) else tuple(range(-len(width), 0))
        self.width, self.epsilon = width, epsilon
        self.one_plus_scale, self.cast_before_scale = one_plus_scale, cast_before_scale

    def check(self, x_btd: jax.Array) -> None:
        """Raises ValueError if x is not `b t d`."""
        if isinstance(self.width, int):
            checks.check_features("x", x_btd.shape, self.width)

    def scaled(self, normalised_btd: jax.Array, dtype: Dtype) -> jax.Array:
        """`scale n + offset`."""
        if self.cast_before_scale:
            normalised_btd = normalised_btd.astype(dtype)
        y_btd = normalised_btd
        if self.scale is not None:
            scale_d = self.scale[...].astype(y_btd.dtype)
            if self.one_plus_scale:
                scale_d = 1 + scale_d
            # In float32, as in `add_bias`, so that the gradient of the scale adds up there.
            wide_btd = upcast_half(y_btd)
            y_btd = (wide_btd * upcast_half(aligned(scale_d, wide_btd))).astype(y_btd.dtype)
        if self.offset is not None:
            y_btd = add_bias(y_btd, self.offset[...].astype(y_btd.dtype))
        return y_btd.astype(dtype)


class LayerNorm(Norm):
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d (NORM).

    The variance is the mean of centered squares; `nnx.LayerNorm` defaults to `E[x^2] - E[x]^2`.
    """

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        self.check(x_btd)
        wide_btd = upcast_half(x_btd)
        centred_btd = wide_btd - wide_btd.mean(axis=self.axes, keepdims=True)
        variance_bt1 = jnp.square(centred_btd).mean(axis=self.axes, keepdims=True)
        normalised_btd = centred_btd * jax.lax.rsqrt(variance_bt1 + self.epsilon)
        return self.scaled(normalised_btd, x_btd.dtype)


class RMSNorm(Norm):
    """`y = scale x / sqrt(mean(x^2) + epsilon) + offset` over d (NORM)."""

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        self.check(x_btd)
        wide_btd = upcast_half(x_btd)
        square_bt1 = jnp.square(wide_btd).mean(axis=self.axes, keepdims=True)
        normalised_btd = wide_btd * jax.lax.rsqrt(square_bt1 + self.epsilon)
        return self.scaled(normalised_btd, x_btd.dtype)


def norm(
    config: TransformerConfig, width: int | tuple[int, ...] | None = None, **own: Unpack[Own]
) -> Norm:
    """Returns the norm of the config. width: default the model's; see `Norm`. It computes in the
    dtype of x or a wider one, and draws no random numbers.
    """
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    flags = config.norm_offset, config.norm_one_plus_scale, config.norm_cast_before_scale
    width, dtype = width or config.model_width, own.get("param_dtype", jnp.float32)
    return kind(width, config.epsilon, *flags, config.norm_scale, param_dtype=dtype)


def output_norm(config: TransformerConfig, **own: Unpack[Own]) -> Norm | None:
    """Returns the second norm of a sub-layer; only norm_placement "sandwich" has it (RESIDUAL)."""
    return norm(config, **own) if config.norm_placement == "sandwich" else None


def unchanged(x_btd: jax.Array) -> jax.Array:
    """Replaces the norm that the first layer may lack (RESIDUAL)."""
    return x_btd
