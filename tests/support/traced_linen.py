"""An encoder in Flax Linen with names and arguments of its own, and mistakes in it, as the file of a port."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from reference_numpy import TransformerConfig


class Attention(nn.Module):
    config: TransformerConfig
    dtype: Any
    mistake: str

    @nn.compact
    def __call__(self, x: jax.Array, keys: jax.Array, allowed: jax.Array | None) -> jax.Array:
        c = self.config
        sizes = {"q": (c.heads, c.key_size), "k": (c.key_value_heads, c.key_size), "v": (c.key_value_heads, c.value_size)}
        query, key, value = (
            nn.DenseGeneral(size, use_bias=c.attention_bias, param_dtype=self.dtype, name=name)(given)
            for (name, size), given in zip(sizes.items(), (x, keys, keys), strict=True)
        )
        key, value = (jnp.repeat(part, c.heads // c.key_value_heads, axis=2) for part in (key, value))
        logits = jnp.einsum("bthk,bshk->bhts", query, key) / (1 if self.mistake == "unscaled" else c.key_size**0.5)
        allowed = jnp.ones(logits.shape, bool) if allowed is None else jnp.broadcast_to(allowed, logits.shape)
        weights = jnp.where(allowed, nn.softmax(jnp.where(allowed, logits, -jnp.inf)), 0)
        mixed = jnp.einsum("bhts,bshe->bthe", weights, value)
        return nn.DenseGeneral(c.model_width, axis=(-2, -1), use_bias=c.attention_bias, param_dtype=self.dtype, name="out")(mixed)


class Block(nn.Module):
    """The feed-forward is written out in the block."""

    config: TransformerConfig
    dtype: Any
    mistake: str

    def setup(self) -> None:
        c = self.config
        self.attn = Attention(c, self.dtype, self.mistake)
        self.up, self.down = (nn.Dense(size, param_dtype=self.dtype) for size in (c.feed_forward_width, c.model_width))
        self.ln = [nn.LayerNorm(epsilon=c.epsilon, use_fast_variance=False, param_dtype=self.dtype) for _ in range(2)]

    def __call__(self, x: jax.Array, allowed: jax.Array | None) -> jax.Array:
        y = self.ln[0](x + self.attn(x, x, allowed))
        hidden = self.up(x if self.mistake == "residual" else y)
        if self.mistake == "detached":
            hidden = jax.lax.stop_gradient(hidden)
        return self.ln[1](y + self.down(nn.relu(hidden)))


class Encoder(nn.Module):
    config: TransformerConfig
    dtype: Any
    mistake: str

    @nn.compact
    def __call__(self, x: jax.Array, allowed: jax.Array | None) -> jax.Array:
        for index in range(self.config.encoder_layers):
            x = Block(self.config, self.dtype, self.mistake if index == 1 else "")(x, allowed)
        norm = nn.LayerNorm(epsilon=self.config.epsilon, use_fast_variance=False, param_dtype=self.dtype, name="last")
        return norm(x) if self.config.final_norm else x


WEIGHTS = {
    "multi_head_attention": (
        *((f"{name}.kernel", f"{name[0]}.kernel", f"d {axes}") for name, axes in (("query", "h k"), ("key", "g k"), ("value", "g e"))),
        *((f"{name}.bias", f"{name[0]}.bias", axes) for name, axes in (("query", "h k"), ("key", "g k"), ("value", "g e"))),
        ("output.kernel", "out.kernel", "h e d"),
        ("output.bias", "out.bias", "d"),
    ),
    "layer_norm": (("scale", "scale", "d"), ("offset", "bias", "d")),
    "feed_forward": (
        ("hidden.kernel", "up.kernel", "d f"),
        ("hidden.bias", "up.bias", "f"),
        ("output.kernel", "down.kernel", "f d"),
        ("output.bias", "down.bias", "d"),
    ),
    "encoder_layer": (("self_attention", "attn"), ("self_attention_norm", "ln.0"), ("feed_forward_norm", "ln_1"), ("feed_forward", "")),
    "encoder": (("layers", "Block"), ("final_norm", "last")),
}
CALL = {
    "multi_head_attention": {"x": "query_btd", "keys": "memory_bsd", "allowed": "mask_bhts"},
    "encoder_layer": {"x": "x_btd", "allowed": "mask_bhts"},
    "encoder": {"x": "x_bsd", "allowed": "mask_bhts"},
}


def port(mistake: str) -> dict[str, Any]:
    """What the file of a port with that mistake contains; "" is the model as it should be."""
    kinds = {"multi_head_attention": Attention, "encoder_layer": Block, "encoder": Encoder}
    components = {name: lambda config, dtype, kind=kind: kind(config, dtype, mistake) for name, kind in kinds.items()}
    config = {"activation": "relu", "norm_placement": "post"}
    return {
        "framework": "jax",
        "components": components,
        "weights": WEIGHTS,
        "call": CALL,
        "config": config,
        "modes": ("compiled", "eager"),
    }
