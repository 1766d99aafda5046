"""The position-wise feed-forward network and its activations."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .dropout import Dropout

__all__ = ["activation", "FeedForward"]  # noqa: RUF022 - the truth's order


def activation(x: jax.Array, name: str) -> jax.Array:
    """Elementwise, by name: relu, gelu_erf, gelu_tanh; half types compute in float32."""
    if name == "relu":
        return jax.nn.relu(x)
    if name not in ("gelu_erf", "gelu_tanh"):
        raise ValueError(f"activation must be one of relu, gelu_erf, gelu_tanh; got {name!r}")
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jax.nn.gelu(x.astype(wide), approximate=name == "gelu_tanh").astype(x.dtype)


class FeedForward(nnx.Module):
    """`FFN(x) = activation(x W_1 + b_1) W_2 + b_2`, the same at every position; `nnx.Linear` has the canonical axes `d f` and `f d`."""

    def __init__(
        self, config: TransformerConfig, *, dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs
    ) -> None:
        width, hidden_width = config.model_width, config.feed_forward_width
        xavier = nnx.initializers.xavier_uniform()
        self.hidden = nnx.Linear(width, hidden_width, kernel_init=xavier, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.output = nnx.Linear(hidden_width, width, kernel_init=xavier, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.hidden_dropout = Dropout(config.hidden_dropout_rate, rngs=rngs)
        self.activation_name = config.activation

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        checks.check_features("x", x_btd.shape, self.hidden.in_features)
        active_btf = activation(self.hidden(x_btd), self.activation_name)
        return self.output(self.hidden_dropout(active_btf))
