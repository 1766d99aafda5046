"""An encoder of Flax NNX modules under other names, with one mistake of choice. Used by the tests of the first divergence."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig


class Attention(nnx.Module):
    def __init__(self, config: TransformerConfig, dtype: Any, mistake: str, rngs: nnx.Rngs) -> None:
        width, heads, self.mistake = config.model_width, config.heads, mistake
        self.q, self.k = (nnx.LinearGeneral(width, (heads, config.key_size), param_dtype=dtype, rngs=rngs) for _ in range(2))
        self.v = nnx.LinearGeneral(width, (heads, config.value_size), param_dtype=dtype, rngs=rngs)
        self.out = nnx.LinearGeneral((heads, config.value_size), width, axis=(-2, -1), param_dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, *, mask: jax.Array) -> jax.Array:
        logits = jnp.einsum("bthk,bshk->bhts", self.q(x), self.k(x))
        logits = logits if self.mistake == "unscaled" else logits * self.q(x).shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf))
        return self.out(jnp.einsum("bhts,bshe->bthe", weights, self.v(x)))


class FeedForward(nnx.Module):
    def __init__(self, config: TransformerConfig, dtype: Any, mistake: str, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(config.model_width, config.feed_forward_width, param_dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(config.feed_forward_width, config.model_width, param_dtype=dtype, rngs=rngs)
        self.mistake = mistake

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(self.up(x))
        return self.down(jax.lax.stop_gradient(hidden) if self.mistake == "detached" else hidden)


class Block(nnx.Module):
    def __init__(self, config: TransformerConfig, dtype: Any, mistake: str, rngs: nnx.Rngs) -> None:
        self.attn, self.ffn = Attention(config, dtype, mistake, rngs), FeedForward(config, dtype, mistake, rngs)
        self.ln1, self.ln2 = (
            nnx.LayerNorm(config.model_width, epsilon=config.epsilon, use_fast_variance=False, param_dtype=dtype, rngs=rngs) for _ in "12"
        )
        self.mistake = mistake

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        y = self.ln1(x + self.attn(x, mask=mask))
        return self.ln2(y + self.ffn(x if self.mistake == "residual" else y))


class Encoder(nnx.Module):
    def __init__(self, config: TransformerConfig, dtype: Any, mistake: str) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([Block(config, dtype, mistake if i == 1 else "", rngs) for i in range(config.encoder_layers)])
        self.norm = nnx.LayerNorm(config.model_width, epsilon=config.epsilon, use_fast_variance=False, param_dtype=dtype, rngs=rngs)

    @nnx.jit
    def __call__(self, x_bsd: jax.Array, mask_bhts: jax.Array) -> jax.Array:
        for layer in self.layers:
            x_bsd = layer(x_bsd, mask_bhts)
        return self.norm(x_bsd)


WEIGHTS = (
    *((f"self_attention.{name}.kernel", f"attn.{name[0]}.kernel", f"d {axes}") for name, axes in
      (("query", "h k"), ("key", "g k"), ("value", "g e"))),
    *((f"self_attention.{name}.bias", f"attn.{name[0]}.bias", axes) for name, axes in
      (("query", "h k"), ("key", "g k"), ("value", "g e"))),
    ("self_attention.output.kernel", "attn.out.kernel", "h e d"),
    ("self_attention.output.bias", "attn.out.bias", "d"),
    ("feed_forward.hidden.kernel", "ffn.up.kernel", "d f"),
    ("feed_forward.hidden.bias", "ffn.up.bias", "f"),
    ("feed_forward.output.kernel", "ffn.down.kernel", "f d"),
    ("feed_forward.output.bias", "ffn.down.bias", "d"),
    *((f"{name}.{kind}", f"{native}.{variable}", "d") for kind, variable in (("scale", "scale"), ("offset", "bias")) for name, native in
      (("self_attention_norm", "ln1"), ("feed_forward_norm", "ln2"), ("final_norm", "norm"))),
)  # fmt: skip
PATHS = (
    ("self_attention", "attn"),
    ("feed_forward", "ffn"),
    ("self_attention_norm", "ln1"),
    ("feed_forward_norm", "ln2"),
    ("final_norm", "norm"),
)


def port(mistake: str) -> dict[str, Any]:
    """What the file of a port with that mistake contains; "" is the model as it should be."""
    components = {"encoder": lambda config, dtype: Encoder(config, dtype, mistake)}
    return {"framework": "jax", "components": components, "weights": WEIGHTS, "module_paths": PATHS}
