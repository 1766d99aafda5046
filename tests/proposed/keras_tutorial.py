"""Keras layers with their own projections, masks that are 1 where a key is hidden, and weights as a second output."""

import tensorflow as tf


def scaled_dot_product_attention(q, k, v, mask):
    logits = tf.matmul(q, k, transpose_b=True) / tf.math.sqrt(tf.cast(tf.shape(k)[-1], q.dtype))
    if mask is not None:
        logits += tf.cast(mask, q.dtype) * -1e9
    w = tf.nn.softmax(logits, axis=-1)
    return tf.matmul(w, v), w


class MultiHeadAttention(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_model, self.depth = num_heads, d_model, d_model // num_heads
        self.wq, self.wk, self.wv, self.dense = (tf.keras.layers.Dense(d_model) for _ in range(4))

    def split(self, x, b):
        return tf.transpose(tf.reshape(x, (b, -1, self.num_heads, self.depth)), [0, 2, 1, 3])

    def call(self, v, k, q, mask):
        b = tf.shape(q)[0]
        q, k, v = self.split(self.wq(q), b), self.split(self.wk(k), b), self.split(self.wv(v), b)
        o, w = scaled_dot_product_attention(q, k, v, mask)
        return self.dense(tf.reshape(tf.transpose(o, [0, 2, 1, 3]), (b, -1, self.d_model))), w


class DecoderLayer(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads, dff, rate=0.1):
        super().__init__()
        self.mha1 = MultiHeadAttention(d_model, num_heads)
        self.mha2 = MultiHeadAttention(d_model, num_heads)
        self.ffn = tf.keras.Sequential([tf.keras.layers.Dense(dff, activation="relu"), tf.keras.layers.Dense(d_model)])
        norms = (tf.keras.layers.LayerNormalization(epsilon=1e-6) for _ in range(3))
        self.layernorm1, self.layernorm2, self.layernorm3 = norms

    def call(self, x, enc_output, training, look_ahead_mask, padding_mask):
        a1, w1 = self.mha1(x, x, x, look_ahead_mask)
        out1 = self.layernorm1(a1 + x)
        a2, w2 = self.mha2(enc_output, enc_output, out1, padding_mask)
        out2 = self.layernorm2(a2 + out1)
        return self.layernorm3(self.ffn(out2) + out2), w1, w2
