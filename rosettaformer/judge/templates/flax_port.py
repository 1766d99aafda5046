"""A port in Flax NNX: modules, and a table that says where their parameters are.

    rosettaformer check my_port.py       runs every case of these components through it
    rosettaformer diagnose my_port.py    says what is wrong with it, and how to fix it

Put your own modules in place of what is here. They are called with the arguments that the cases have, by name.
"""

import jax.numpy as jnp
from flax import nnx

from rosettaformer.ports import CLASSIC


class LayerNorm(nnx.Module):
    def __init__(self, config, dtype):
        self.norm = nnx.LayerNorm(config.model_width, epsilon=config.epsilon, use_fast_variance=False, param_dtype=dtype, rngs=nnx.Rngs(0))

    def __call__(self, x_btd):
        return self.norm(x_btd)


class MultiHeadAttention(nnx.Module):
    def __init__(self, config, dtype):
        width, bias = config.model_width, config.attention_bias
        query, key = (config.heads, config.key_size), (config.key_value_heads, config.key_size)
        value, mixed = (config.key_value_heads, config.value_size), (config.heads, config.value_size)
        self.query = nnx.LinearGeneral(width, query, use_bias=bias, param_dtype=dtype, rngs=nnx.Rngs(0))
        self.key = nnx.LinearGeneral(width, key, use_bias=bias, param_dtype=dtype, rngs=nnx.Rngs(0))
        self.value = nnx.LinearGeneral(width, value, use_bias=bias, param_dtype=dtype, rngs=nnx.Rngs(0))
        self.out = nnx.LinearGeneral(mixed, width, axis=(-2, -1), use_bias=bias, param_dtype=dtype, rngs=nnx.Rngs(0))

    def __call__(self, query_btd, memory_bsd, mask_bhts=None, causal=False, return_weights=False):
        query, key, value = self.query(query_btd), self.key(memory_bsd), self.value(memory_bsd)
        key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
        logits = jnp.einsum("bthk,bshk->bhts", query, key) * query.shape[-1] ** -0.5
        attend = jnp.ones(logits.shape[-2:], bool)
        if causal:
            attend = jnp.tril(attend, logits.shape[-1] - logits.shape[-2])
        if mask_bhts is not None:
            attend = attend & mask_bhts  # True = may attend
        # A query that may attend to nothing gives zeros.
        weights = jnp.where(attend, nnx.softmax(jnp.where(attend, logits, -jnp.inf)), 0)
        output = self.out(jnp.einsum("bhts,bshe->bthe", weights, value))
        return (output, weights) if return_weights else output


framework = "jax"

# What the port covers: component -> how it is built. Add yours: "feed_forward", "encoder_layer", "transformer", ...
components = {
    "layer_norm": LayerNorm,
    "multi_head_attention": MultiHeadAttention,
}

# The rename table: end of the canonical name, end of the module's own name, axes of the module's variable. The letters: d model width,
# h heads, g key/value heads, k key size, e value size, f feed-forward width, v vocabulary; brackets join axes into one.
weights = (
    ("scale", "norm.scale", "d"),
    ("offset", "norm.bias", "d"),
    ("query.kernel", "query.kernel", "d h k"),
    ("query.bias", "query.bias", "h k"),
    ("key.kernel", "key.kernel", "d g k"),
    ("key.bias", "key.bias", "g k"),
    ("value.kernel", "value.kernel", "d g e"),
    ("value.bias", "value.bias", "g e"),
    ("output.kernel", "out.kernel", "h e d"),
    ("output.bias", "out.bias", "d"),
)

# How the modules are run: "compiled" by nnx.jit, or "eager"; the first is what a check takes.
modes = ("eager", "compiled")

# Config fields that your modules fix: the cases are made with these values. Without the line every value is checked.
# CLASSIC leaves out RoPE, RMS norms, gates, windows, caps and query-key norms; add more, such as CLASSIC | {"model_width": 12, "heads": 3}.
config = CLASSIC

# The dtypes that your modules support. Without the line all four are checked: float64, float32, bfloat16, float16.
dtypes = ("float64", "float32")

# Where your modules have other arguments: component -> {your argument: the case's input}. Positions that are added inside: "zeros_btd".
# call = {"feed_forward": {"x": "x_btd"}, "positional_encoding": {"x": "zeros_btd"}}

# Where a whole model is in the file, weights is {component: table}, and rows of two rename its parts: docs/ports.md of rosettaformer.
# weights = {"encoder_layer": (("self_attention", "attn"), ("feed_forward", "mlp")), "multi_head_attention": (...), ...}
