"""Keras sub-layers that hold attention or feed-forward with residual and norm; the key size is the model width."""

import keras
from keras import layers


class BaseAttention(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__()
        self.mha = layers.MultiHeadAttention(**kwargs)
        self.layernorm = layers.LayerNormalization()
        self.add = layers.Add()


class CrossAttention(BaseAttention):
    def call(self, x, context):
        return self.layernorm(self.add([x, self.mha(query=x, key=context, value=context)]))


class GlobalSelfAttention(BaseAttention):
    def call(self, x):
        return self.layernorm(self.add([x, self.mha(query=x, value=x, key=x)]))


class CausalSelfAttention(BaseAttention):
    def call(self, x):
        return self.layernorm(self.add([x, self.mha(query=x, value=x, key=x, use_causal_mask=True)]))


class FeedForward(layers.Layer):
    def __init__(self, d_model, dff, dropout_rate=0.1):
        super().__init__()
        self.seq = keras.Sequential([layers.Dense(dff, activation="relu"), layers.Dense(d_model), layers.Dropout(dropout_rate)])
        self.add, self.layer_norm = layers.Add(), layers.LayerNormalization()

    def call(self, x):
        return self.layer_norm(self.add([x, self.seq(x)]))


class EncoderLayer(layers.Layer):
    def __init__(self, *, d_model, num_heads, dff, dropout_rate=0.1):
        super().__init__()
        self.self_attention = GlobalSelfAttention(num_heads=num_heads, key_dim=d_model, dropout=dropout_rate)
        self.ffn = FeedForward(d_model, dff)

    def call(self, x):
        return self.ffn(self.self_attention(x))


class DecoderLayer(layers.Layer):
    def __init__(self, *, d_model, num_heads, dff, dropout_rate=0.1):
        super().__init__()
        self.causal_self_attention = CausalSelfAttention(num_heads=num_heads, key_dim=d_model, dropout=dropout_rate)
        self.cross_attention = CrossAttention(num_heads=num_heads, key_dim=d_model, dropout=dropout_rate)
        self.ffn = FeedForward(d_model, dff)

    def call(self, x, context):
        return self.ffn(self.cross_attention(x=self.causal_self_attention(x=x), context=context))
