"""KerasHub's layers: keras_hub.layers.TransformerEncoder and TransformerDecoder, on TensorFlow."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import keras_hub

from rosettaformer.ports import CLASSIC

framework = "tf"
dtypes = ("float64", "float32")

# the layers split the width among the heads and always have biases
config = CLASSIC | {
    "encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4,
    "attention_bias": True,
}  # fmt: skip

ACTIVATIONS = {
    "relu": keras.activations.relu,
    "gelu_erf": lambda x: keras.activations.gelu(x, approximate=False),
    "gelu_tanh": lambda x: keras.activations.gelu(x, approximate=True),
    "silu": keras.activations.silu,
}


def options(config, dtype):
    return {
        "intermediate_dim": config.feed_forward_width,
        "num_heads": config.heads,
        "dropout": config.dropout_rate,
        "activation": ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.epsilon,
        "normalize_first": config.norm_placement == "pre",
        "dtype": dtype,
    }


def padding(mask_bhts):
    """KerasHub's padding mask, True = real, of a mask that is the same for every head and query."""
    return None if mask_bhts is None else mask_bhts[:, 0, 0]


class EncoderLayer(keras.layers.Layer):
    def __init__(self, config, dtype):
        super().__init__(dtype=dtype)
        self.layer = keras_hub.layers.TransformerEncoder(**options(config, dtype))

    def call(self, x_btd, mask_bhts=None):
        return self.layer(x_btd, padding_mask=padding(mask_bhts))


class DecoderLayer(keras.layers.Layer):
    def __init__(self, config, dtype):
        super().__init__(dtype=dtype)
        self.layer = keras_hub.layers.TransformerDecoder(**options(config, dtype))

    def call(self, x_btd, memory_bsd=None, self_mask_bhts=None, cross_mask_bhts=None):
        return self.layer(x_btd, memory_bsd, decoder_padding_mask=padding(self_mask_bhts), encoder_padding_mask=padding(cross_mask_bhts))


components = {
    "encoder_layer": lambda config, dtype: EncoderLayer(config, dtype.name),
    "decoder_layer": lambda config, dtype: DecoderLayer(config, dtype.name),
}

weights = (
    *(
        row
        for name in ("self_attention", "cross_attention")
        for row in (
            (f"{name}.query.kernel", f"layer._{name}_layer.query_dense.kernel", "d h k"),
            (f"{name}.query.bias", f"layer._{name}_layer.query_dense.bias", "h k"),
            (f"{name}.key.kernel", f"layer._{name}_layer.key_dense.kernel", "d g k"),
            (f"{name}.key.bias", f"layer._{name}_layer.key_dense.bias", "g k"),
            (f"{name}.value.kernel", f"layer._{name}_layer.value_dense.kernel", "d g e"),
            (f"{name}.value.bias", f"layer._{name}_layer.value_dense.bias", "g e"),
            (f"{name}.output.kernel", f"layer._{name}_layer.output_dense.kernel", "h e d"),
            (f"{name}.output.bias", f"layer._{name}_layer.output_dense.bias", "d"),
            (f"{name}_norm.scale", f"layer._{name}_layer_norm.gamma", "d"),
            (f"{name}_norm.offset", f"layer._{name}_layer_norm.beta", "d"),
        )
    ),
    ("feed_forward.hidden.kernel", "layer._feedforward_intermediate_dense.kernel", "d f"),
    ("feed_forward.hidden.bias", "layer._feedforward_intermediate_dense.bias", "f"),
    ("feed_forward.output.kernel", "layer._feedforward_output_dense.kernel", "f d"),
    ("feed_forward.output.bias", "layer._feedforward_output_dense.bias", "d"),
    ("feed_forward_norm.scale", "layer._feedforward_layer_norm.gamma", "d"),
    ("feed_forward_norm.offset", "layer._feedforward_layer_norm.beta", "d"),
)

module_paths = (
    ("self_attention", "layer._self_attention_layer"),
    ("self_attention_norm", "layer._self_attention_layer_norm"),
    ("cross_attention", "layer._cross_attention_layer"),
    ("cross_attention_norm", "layer._cross_attention_layer_norm"),
    ("feed_forward_norm", "layer._feedforward_layer_norm"),
)
