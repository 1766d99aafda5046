"""A port in Keras on TensorFlow: layers, and a table that maps their variables.

    rosettaformer check my_port.py       runs every case of these components
    rosettaformer diagnose my_port.py    names the bug and suggests a fix

Replace these layers with your own. They are called with keyword arguments named as below.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
from keras import ops

from rosettaformer.ports import CLASSIC


class LayerNorm(keras.layers.Layer):
    def __init__(self, config, dtype):
        super().__init__(dtype=dtype)
        self.norm = keras.layers.LayerNormalization(epsilon=config.epsilon, dtype=dtype)

    def call(self, x_btd):
        return self.norm(x_btd)


class MultiHeadAttention(keras.layers.Layer):
    def __init__(self, config, dtype):
        super().__init__(dtype=dtype)
        self.repeats = config.heads // config.key_value_heads
        self.query = self._project("btd,dhk->bthk", (None, config.heads, config.key_size), "hk", config, dtype)
        self.key = self._project("bsd,dgk->bsgk", (None, config.key_value_heads, config.key_size), "gk", config, dtype)
        self.value = self._project("bsd,dge->bsge", (None, config.key_value_heads, config.value_size), "ge", config, dtype)
        self.out = self._project("bthe,hed->btd", (None, config.model_width), "d", config, dtype)

    def _project(self, equation, shape, bias_axes, config, dtype):
        return keras.layers.EinsumDense(equation, shape, bias_axes=bias_axes if config.attention_bias else None, dtype=dtype)

    def call(self, query_btd, memory_bsd, mask_bhts=None, causal=False, return_weights=False):
        query, key, value = self.query(query_btd), self.key(memory_bsd), self.value(memory_bsd)
        key, value = (ops.repeat(x, self.repeats, axis=2) for x in (key, value))
        scale = ops.sqrt(ops.cast(query.shape[-1], query.dtype))
        logits = ops.einsum("bthk,bshk->bhts", query, key) / scale
        attend = ops.ones(logits.shape[-2:], dtype="bool")
        if causal:
            attend = ops.tril(attend, logits.shape[-1] - logits.shape[-2])
        if mask_bhts is not None:
            attend = ops.logical_and(attend, mask_bhts)  # True = may attend
        # a fully masked query returns zeros
        hidden = ops.cast(float("-inf"), logits.dtype)
        weights = ops.where(attend, ops.softmax(ops.where(attend, logits, hidden)), ops.cast(0, logits.dtype))
        output = self.out(ops.einsum("bhts,bshe->bthe", weights, value))
        return (output, weights) if return_weights else output


framework = "tf"

# The components of this port, each with a function that builds it. Add your own, such as
# "feed_forward", "encoder_layer" or "transformer".
components = {
    "layer_norm": lambda config, dtype: LayerNorm(config, dtype.name),
    "multi_head_attention": lambda config, dtype: MultiHeadAttention(config, dtype.name),
}

# The rename table. Each row: end of the canonical name, end of your name, axes of your variable.
# Axes: d model width, h heads, g key/value heads, k key size, e value size, f feed-forward width,
# v vocabulary; (h k) is one flattened axis.
weights = (
    ("scale", "norm.gamma", "d"),
    ("offset", "norm.beta", "d"),
    ("query.kernel", "query.kernel", "d h k"),
    ("query.bias", "query.bias", "h k"),
    ("key.kernel", "key.kernel", "d g k"),
    ("key.bias", "key.bias", "g k"),
    ("value.kernel", "value.kernel", "d g e"),
    ("value.bias", "value.bias", "g e"),
    ("output.kernel", "out.kernel", "h e d"),
    ("output.bias", "out.bias", "d"),
)

# Config fields with a fixed value in your layers; all cases use these values. Without this line,
# all values are tested. CLASSIC disables RoPE, RMS norms, gates, windows, caps and query-key norms.
# To fix more fields: CLASSIC | {"model_width": 12, "heads": 3}.
config = CLASSIC

# The dtypes that your layers support; without this line, also bfloat16 and float16 are tested.
dtypes = ("float64", "float32")

# If your layers' arguments have other names: component -> {your argument: input of the case}. The
# input of a layer that adds positions to it is "zeros_btd".
# call = {"feed_forward": {"x": "x_btd"}, "positional_encoding": {"x": "zeros_btd"}}

# If this file holds a whole model: one table per component, and rows of two that rename sublayers
# (docs/ports.md of rosettaformer).
# weights = {"encoder_layer": (("self_attention", "attn"), ("feed_forward", "mlp")), "multi_head_attention": (...), ...}
