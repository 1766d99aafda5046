"""Keras layers that cast to float32 in attention, so that they cannot run in float64; pre-norm; masks that are 1 where a key is hidden."""

import tensorflow as tf


class MultiHeadAttention(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_model, self.depth = num_heads, d_model, d_model // num_heads
        self.W_q, self.W_k, self.W_v = (tf.keras.layers.Dense(d_model) for _ in range(3))
        self.linear = tf.keras.layers.Dense(d_model)

    def split_heads(self, x):
        return tf.transpose(tf.reshape(x, (tf.shape(x)[0], -1, self.num_heads, self.depth)), [0, 2, 1, 3])

    def call(self, Q, K, V, mask):
        q, k, v = self.split_heads(self.W_q(Q)), self.split_heads(self.W_k(K)), self.split_heads(self.W_v(V))
        scaled = tf.matmul(q, k, transpose_b=True) / tf.math.sqrt(tf.cast(tf.shape(k)[-1], tf.float32))
        if mask is not None:
            scaled += mask * -1e9
        attention = tf.nn.softmax(scaled, axis=-1)
        out = tf.reshape(tf.transpose(tf.matmul(attention, v), [0, 2, 1, 3]), (tf.shape(Q)[0], -1, self.d_model))
        return self.linear(out), attention


class PoswiseFeedForwardNet(tf.keras.layers.Layer):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.fc1, self.fc2 = tf.keras.layers.Dense(d_ff, activation="relu"), tf.keras.layers.Dense(d_model)

    def call(self, x):
        return self.fc2(self.fc1(x))


class EncoderLayer(tf.keras.layers.Layer):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.enc_self_attn, self.ffn = MultiHeadAttention(d_model, n_heads), PoswiseFeedForwardNet(d_model, d_ff)
        self.norm_1, self.norm_2 = (tf.keras.layers.LayerNormalization(epsilon=1e-6) for _ in range(2))

    def call(self, x, mask):
        residual = x
        out, enc_attn = self.enc_self_attn(*[self.norm_1(x)] * 3, mask)
        out = out + residual
        return self.ffn(self.norm_2(out)) + out, enc_attn
