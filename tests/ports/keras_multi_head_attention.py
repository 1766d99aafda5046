"""Keras' own attention, keras.layers.MultiHeadAttention, on TensorFlow."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras

from rosettaformer.ports import CLASSIC

framework = "tf"
dtypes = ("float64", "float32")
config = CLASSIC | {"heads": 3, "key_value_heads": 3}  # grouped heads are another Keras layer


class MultiHeadAttention(keras.layers.Layer):
    def __init__(self, config, dtype):
        super().__init__(dtype=dtype)
        self.attention = keras.layers.MultiHeadAttention(
            config.heads,
            config.key_size,
            config.value_size,
            dropout=config.attention_dropout_rate,
            use_bias=config.attention_bias,
            dtype=dtype,
        )

    def call(self, query_btd, memory_bsd, mask_bhts=None, causal=False, return_weights=False):
        return self.attention(
            query_btd, memory_bsd, attention_mask=mask_bhts, use_causal_mask=causal, return_attention_scores=return_weights
        )


components = {
    "multi_head_attention": lambda config, dtype: MultiHeadAttention(config, dtype.name),
}

weights = (
    ("query.kernel", "attention.query_dense.kernel", "d h k"),
    ("query.bias", "attention.query_dense.bias", "h k"), ("key.kernel", "attention.key_dense.kernel", "d g k"),
    ("key.bias", "attention.key_dense.bias", "g k"), ("value.kernel", "attention.value_dense.kernel", "d g e"),
    ("value.bias", "attention.value_dense.bias", "g e"),
    ("output.kernel", "attention.output_dense.kernel", "h e d"),
    ("output.bias", "attention.output_dense.bias", "d"),
)  # fmt: skip
