"""A port in Flax NNX: modules, and a table that maps their parameters.

    rosettaformer check my_port.py       runs every case of these components
    rosettaformer diagnose my_port.py    names the bug and suggests a fix

Replace these modules with your own. They are called with keyword arguments named as below.
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
        # a fully masked query returns zeros
        weights = jnp.where(attend, nnx.softmax(jnp.where(attend, logits, -jnp.inf)), 0)
        output = self.out(jnp.einsum("bhts,bshe->bthe", weights, value))
        return (output, weights) if return_weights else output


framework = "jax"

# The components of this port, each with a function that builds it. Add your own, such as
# "feed_forward", "encoder_layer" or "transformer".
components = {
    "layer_norm": LayerNorm,
    "multi_head_attention": MultiHeadAttention,
}

# The rename table. Each row: end of the canonical name, end of your name, axes of your variable.
# Axes: d model width, h heads, g key/value heads, k key size, e value size, f feed-forward width,
# v vocabulary; (h k) is one flattened axis.
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

# Execution modes: "compiled" (by nnx.jit) or "eager". `check` uses the first one by default.
modes = ("eager", "compiled")

# Config fields with a fixed value in your modules; all cases use these values. Without this line,
# all values are tested. CLASSIC disables RoPE, RMS norms, gates, windows, caps and query-key norms.
# To fix more fields: CLASSIC | {"model_width": 12, "heads": 3}.
config = CLASSIC

# The dtypes that your modules support; without this line, also bfloat16 and float16 are tested.
dtypes = ("float64", "float32")

# If your modules' arguments have other names: component -> {your argument: input of the case}. The
# input of a module that adds positions to it is "zeros_btd".
# call = {"feed_forward": {"x": "x_btd"}, "positional_encoding": {"x": "zeros_btd"}}

# If this file holds a whole model: one table per component, and rows of two that rename submodules
# (docs/ports.md of rosettaformer).
# weights = {"encoder_layer": (("self_attention", "attn"), ("feed_forward", "mlp")), "multi_head_attention": (...), ...}
