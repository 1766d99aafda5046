"""The position-wise feed-forward network and its activations."""

import math
from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig, checks
from reference_numpy.config import ACTIVATIONS
from reference_numpy.gate import Gate

from .dropout import Dropout
from .precision import upcast_half
from .projection import Projection
from .values import Own

__all__ = ["activation", "FeedForward"]  # noqa: RUF022 - the reference's order


def activation(x: jax.Array, name: str) -> jax.Array:
    """Elementwise activation by name (GELU); half-precision dtypes compute in float32.

    relu: `max(x, 0)`. relu_squared: `max(x, 0)^2`. gelu_erf: `x/2 (1 + erf(x / sqrt 2))`.
    gelu_tanh: `x sigmoid(2 u)`, `u = sqrt(2/pi) (x + 0.044715 x^3)`, which equals
    `x/2 (1 + tanh(u))` without cancellation. gelu_sigmoid: `x sigmoid(1.702 x)`. silu:
    `x sigmoid(x)`. Raises ValueError on another name.
    """
    if name == "relu":
        return jax.nn.relu(x)
    if name == "relu_squared":
        return jnp.square(jax.nn.relu(x))
    wide = upcast_half(x)
    if name == "gelu_erf":
        return jax.nn.gelu(wide, approximate=False).astype(x.dtype)
    if name == "gelu_tanh":
        return (wide * jax.nn.sigmoid((8 / math.pi) ** 0.5 * (wide + 0.044715 * wide**3))).astype(
            x.dtype
        )
    if name == "gelu_sigmoid":
        return (wide * jax.nn.sigmoid(1.702 * wide)).astype(x.dtype)
    if name == "silu":
        return jax.nn.silu(wide).astype(x.dtype)
    raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")


class FeedForward(nnx.Module):
    """`FFN(x) = activation(x W_1 + b_1) W_2 + b_2`, `b t d`, the same at every position.

    Gated: `FFN(x) = (activation(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2`.
    """

    def __init__(self, config: TransformerConfig, **own: Unpack[Own]) -> None:
        sizes, bias, gated = config.sizes, config.feed_forward_bias, config.gated_feed_forward
        self.gate = Projection("btd,df->btf", sizes, bias, **own) if gated else None
        self.hidden = Projection("btd,df->btf", sizes, bias, **own)
        self.output = Projection("btf,fd->btd", sizes, bias, **own)
        self.hidden_dropout = Dropout(config.hidden_dropout_rate, rngs=own["rngs"])
        self.activation_name, self.width = config.activation, config.model_width
        self.gating = config.gate

    def __call__(self, x_btd: jax.Array, keep_btf: jax.Array | None = None) -> jax.Array:
        checks.check_features("x", x_btd.shape, self.width)
        return self.output(self.hidden_dropout(self.active(x_btd), keep_btf))

    def active(self, x_btd: jax.Array) -> jax.Array:
        """The hidden layer, `b t f`: `activation(x W_1 + b_1)`, or the gated product."""
        if self.gate is not None:
            pair = self.gate(x_btd), self.hidden(x_btd)
            return gated(*pair, self.activation_name, self.gating)
        return activation(self.hidden(x_btd), self.activation_name)


def gated(
    gate_btf: jax.Array, linear_btf: jax.Array, activation_name: str, gate: Gate = Gate()
) -> jax.Array:
    """`activation(min(gate, limit)) * (clip(linear, -limit, limit) + offset)`."""
    gate_btf, linear_btf = clipped(gate_btf, linear_btf, gate)
    linear_btf = linear_btf + gate.offset if gate.offset else linear_btf
    return activation(gate_btf, activation_name) * linear_btf


def clipped(gate_btf: jax.Array, linear_btf: jax.Array, gate: Gate) -> tuple[jax.Array, jax.Array]:
    """Clips the gate to at most the limit, and the hidden layer to at most it in size.

    `jnp.minimum` and `jnp.clip` halve the gradient of a number that equals the limit.
    """
    if (limit := gate.limit) is None:
        return gate_btf, linear_btf
    linear_btf = jnp.where(jnp.abs(linear_btf) > limit, jnp.sign(linear_btf) * limit, linear_btf)
    return jnp.where(gate_btf > limit, limit, gate_btf), linear_btf
