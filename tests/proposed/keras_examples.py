"""Keras blocks that need a mask: without one a name is unbound."""

import keras
from keras import layers, ops


class TransformerEncoder(layers.Layer):
    def __init__(self, embed_dim, dense_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.dense_proj = keras.Sequential([layers.Dense(dense_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm_1, self.layernorm_2 = layers.LayerNormalization(), layers.LayerNormalization()

    def call(self, inputs, mask=None):
        if mask is not None:
            padding_mask = ops.cast(mask[:, None, :], dtype="int32")
        out = self.layernorm_1(inputs + self.attention(query=inputs, value=inputs, key=inputs, attention_mask=padding_mask))
        return self.layernorm_2(out + self.dense_proj(out))


class TransformerDecoder(layers.Layer):
    def __init__(self, embed_dim, latent_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention_1 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.attention_2 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.dense_proj = keras.Sequential([layers.Dense(latent_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm_1, self.layernorm_2, self.layernorm_3 = (layers.LayerNormalization() for _ in range(3))

    def call(self, inputs, encoder_outputs, mask=None):
        if mask is not None:
            padding_mask = ops.cast(mask[:, None, :], dtype="int32")
        x = self.layernorm_1(inputs + self.attention_1(query=inputs, value=inputs, key=inputs, use_causal_mask=True))
        y = self.attention_2(query=x, value=encoder_outputs, key=encoder_outputs, attention_mask=padding_mask)
        x = self.layernorm_2(x + y)
        return self.layernorm_3(x + self.dense_proj(x))
