"""Keras 3 layers after the classic "Transformer for translation" tutorial of TensorFlow."""
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf
from rosettaformer.ports import CLASSIC


def get_angles(pos, i, d_model):
    angle_rates = 1 / np.power(10000, (2 * (i // 2)) / np.float64(d_model))
    return pos * angle_rates


def positional_encoding(position, d_model):
    angle_rads = get_angles(np.arange(position)[:, np.newaxis], np.arange(d_model)[np.newaxis, :], d_model)
    angle_rads[:, 0::2] = np.sin(angle_rads[:, 0::2])  # even columns
    angle_rads[:, 1::2] = np.cos(angle_rads[:, 1::2])  # odd columns
    return angle_rads[np.newaxis, ...]


def create_padding_mask(seq, pad=2):
    """1 where there is padding."""
    return tf.cast(tf.math.equal(seq, pad), tf.float32)[:, tf.newaxis, tf.newaxis, :]  # (batch, 1, 1, seq_len)


def create_look_ahead_mask(size):
    return 1 - tf.linalg.band_part(tf.ones((size, size)), -1, 0)


def scaled_dot_product_attention(q, k, v, mask=None):
    """q (..., seq_len_q, depth), k (..., seq_len_k, depth), v (..., seq_len_k, depth_v); mask 1 = may not attend."""
    matmul_qk = tf.matmul(q, k, transpose_b=True)
    dk = tf.cast(tf.shape(k)[-1], matmul_qk.dtype)
    scaled_attention_logits = matmul_qk / tf.math.sqrt(dk)
    if mask is not None:
        mask = tf.cast(mask, scaled_attention_logits.dtype)
        scaled_attention_logits += mask * -1e9
    attention_weights = tf.nn.softmax(scaled_attention_logits, axis=-1)
    if mask is not None:
        attention_weights *= 1 - mask  # rows that may attend to nothing
    return tf.matmul(attention_weights, v), attention_weights


class MultiHeadAttention(keras.layers.Layer):
    def __init__(self, d_model, num_heads, use_bias=True, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.d_model = d_model
        assert d_model % self.num_heads == 0
        self.depth = d_model // self.num_heads
        self.wq = keras.layers.Dense(d_model, use_bias=use_bias, dtype=self.dtype_policy)
        self.wk = keras.layers.Dense(d_model, use_bias=use_bias, dtype=self.dtype_policy)
        self.wv = keras.layers.Dense(d_model, use_bias=use_bias, dtype=self.dtype_policy)
        self.dense = keras.layers.Dense(d_model, use_bias=use_bias, dtype=self.dtype_policy)

    def split_heads(self, x, batch_size):
        x = tf.reshape(x, (batch_size, -1, self.num_heads, self.depth))
        return tf.transpose(x, perm=[0, 2, 1, 3])

    def call(self, v, k, q, mask=None):
        batch_size = tf.shape(q)[0]
        q = self.split_heads(self.wq(q), batch_size)
        k = self.split_heads(self.wk(k), batch_size)
        v = self.split_heads(self.wv(v), batch_size)
        scaled_attention, attention_weights = scaled_dot_product_attention(q, k, v, mask)
        scaled_attention = tf.transpose(scaled_attention, perm=[0, 2, 1, 3])
        concat_attention = tf.reshape(scaled_attention, (batch_size, -1, self.d_model))
        return self.dense(concat_attention), attention_weights


def gelu(x):
    return 0.5 * x * (1.0 + tf.math.erf(x / tf.math.sqrt(tf.cast(2.0, x.dtype))))


class PointWiseFeedForward(keras.layers.Layer):
    def __init__(self, d_model, dff, activation="gelu", **kwargs):
        super().__init__(**kwargs)
        self.activation = activation
        self.inner = keras.layers.Dense(dff, dtype=self.dtype_policy)
        self.outer = keras.layers.Dense(d_model, dtype=self.dtype_policy)

    def call(self, x):
        x = self.inner(x)
        x = gelu(x) if self.activation == "gelu" else tf.nn.relu(x)
        return self.outer(x)


class EncoderLayer(keras.layers.Layer):
    def __init__(self, c, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        kw = {"dtype": self.dtype_policy}
        self.mha = MultiHeadAttention(c.model_width, c.heads, c.attention_bias, **kw)
        self.ffn = PointWiseFeedForward(c.model_width, c.feed_forward_width, **kw)
        self.layernorm1 = keras.layers.LayerNormalization(epsilon=c.epsilon, **kw)
        self.layernorm2 = keras.layers.LayerNormalization(epsilon=c.epsilon, **kw)
        self.dropout1 = keras.layers.Dropout(rate, **kw)
        self.dropout2 = keras.layers.Dropout(rate, **kw)

    def call(self, x, training=False, mask=None):
        attn_output, _ = self.mha(x, x, x, mask)
        attn_output = self.dropout1(attn_output, training=training)
        out1 = self.layernorm1(x + attn_output)
        ffn_output = self.ffn(out1)
        ffn_output = self.dropout2(ffn_output, training=training)
        return self.layernorm2(out1 + ffn_output)


class DecoderLayer(keras.layers.Layer):
    def __init__(self, c, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        kw = {"dtype": self.dtype_policy}
        self.mha1 = MultiHeadAttention(c.model_width, c.heads, c.attention_bias, **kw)
        self.mha2 = MultiHeadAttention(c.model_width, c.heads, c.attention_bias, **kw)
        self.ffn = PointWiseFeedForward(c.model_width, c.feed_forward_width, **kw)
        self.layernorm1 = keras.layers.LayerNormalization(epsilon=c.epsilon, **kw)
        self.layernorm2 = keras.layers.LayerNormalization(epsilon=c.epsilon, **kw)
        self.layernorm3 = keras.layers.LayerNormalization(epsilon=c.epsilon, **kw)

    def call(self, x, enc_output, look_ahead_mask=None, padding_mask=None):
        attn1, _ = self.mha1(x, x, x, look_ahead_mask)
        out1 = self.layernorm1(attn1 + x)
        attn2, _ = self.mha2(enc_output, enc_output, out1, padding_mask)
        out2 = self.layernorm2(attn2 + out1)
        ffn_output = self.ffn(out2)
        return self.layernorm3(ffn_output + out2)


class TokenEmbedding(keras.layers.Layer):
    def __init__(self, vocab, c, **kwargs):
        super().__init__(**kwargs)
        self.d_model = c.model_width
        self.embedding = keras.layers.Embedding(vocab, c.model_width, dtype=self.dtype_policy)

    def call(self, ids):
        x = self.embedding(ids)
        return x * tf.math.sqrt(tf.cast(self.d_model, x.dtype))


class AddPositions(keras.layers.Layer):
    def __init__(self, d_model, max_len=512, **kwargs):
        super().__init__(**kwargs)
        self.pos_encoding = positional_encoding(max_len, d_model)

    def call(self, x):
        return x + tf.cast(self.pos_encoding[:, : x.shape[1], :], x.dtype)


class Transformer(keras.Model):
    def __init__(self, c, **kwargs):
        super().__init__(**kwargs)
        kw = {"dtype": self.dtype_policy}
        self.embed_in = TokenEmbedding(c.source_vocabulary, c, **kw)
        self.embed_out = TokenEmbedding(c.target_vocabulary, c, **kw)
        self.pos = AddPositions(c.model_width, **kw)
        self.enc_layers = [EncoderLayer(c, **kw) for _ in range(c.encoder_layers)]
        self.dec_layers = [DecoderLayer(c, **kw) for _ in range(c.decoder_layers)]
        self.final_layer = keras.layers.Dense(c.target_vocabulary, dtype=self.dtype_policy)

    def call(self, inp, tar, inp_mask=None, tar_mask=None):
        enc_padding_mask = create_padding_mask(inp) if inp_mask is None else 1.0 - tf.cast(inp_mask, tf.float32)[:, None, None, :]
        tar_padding_mask = create_padding_mask(tar) if tar_mask is None else 1.0 - tf.cast(tar_mask, tf.float32)[:, None, None, :]
        combined_mask = tf.maximum(tar_padding_mask, create_look_ahead_mask(tar.shape[1]))
        x = self.pos(self.embed_in(inp))
        for layer in self.enc_layers:
            x = layer(x, mask=enc_padding_mask)
        y = self.pos(self.embed_out(tar))
        for layer in self.dec_layers:
            y = layer(y, x, combined_mask, enc_padding_mask)
        return self.final_layer(y)


def hide(mask):
    return None if mask is None else 1.0 - tf.cast(mask, tf.float64)


def look_ahead(inputs):
    mask = create_look_ahead_mask(inputs["x_btd"].shape[1])
    other = hide(inputs["self_mask_bhts"])
    return mask if other is None else tf.maximum(tf.cast(mask, other.dtype), other)


def heads_first(x):
    return tf.transpose(x, perm=[0, 2, 1, 3])


framework = "tf"
dtypes = ("float64", "float32")
components = {
    "embedding": lambda c, dtype: TokenEmbedding(c.source_vocabulary, c, dtype=dtype.name),
    "positional_encoding": lambda c, dtype: AddPositions(c.model_width, dtype=dtype.name),
    "scaled_dot_product_attention": lambda c, dtype: scaled_dot_product_attention,
    "multi_head_attention": lambda c, dtype: MultiHeadAttention(c.model_width, c.heads, c.attention_bias, dtype=dtype.name),
    "feed_forward": lambda c, dtype: PointWiseFeedForward(c.model_width, c.feed_forward_width, dtype=dtype.name),
    "encoder_layer": lambda c, dtype: EncoderLayer(c, dtype=dtype.name),
    "decoder_layer": lambda c, dtype: DecoderLayer(c, dtype=dtype.name),
    "transformer": lambda c, dtype: Transformer(c, dtype=dtype.name),
}
weights = {
    "embedding": (("table", "embedding.embeddings", "v d"),),
    "multi_head_attention": (("query.kernel", "wq.kernel", "d (h k)"),
        ("query.bias", "wq.bias", "(h k)"), ("key.kernel", "wk.kernel", "d (g k)"),
        ("key.bias", "wk.bias", "(g k)"), ("value.kernel", "wv.kernel", "d (g e)"),
        ("value.bias", "wv.bias", "(g e)"), ("output.kernel", "dense.kernel", "(h e) d"),
        ("output.bias", "dense.bias", "d")),
    "feed_forward": (("hidden.kernel", "inner.kernel", "d f"), ("hidden.bias", "inner.bias", "f"),
        ("output.kernel", "outer.kernel", "f d"), ("output.bias", "outer.bias", "d")),
    "layer_norm": (("scale", "gamma", "d"), ("offset", "beta", "d")),
    "encoder_layer": (("self_attention", "mha"), ("self_attention_norm", "layernorm1"),
        ("feed_forward", "ffn"), ("feed_forward_norm", "layernorm2")),
    "decoder_layer": (("self_attention", "mha1"), ("self_attention_norm", "layernorm1"),
        ("cross_attention", "mha2"), ("cross_attention_norm", "layernorm2"),
        ("feed_forward", "ffn"), ("feed_forward_norm", "layernorm3")),
    "logits": (("kernel", "kernel", "d v"), ("bias", "bias", "v")),
    "transformer": (("source_embedding", "embed_in"), ("target_embedding", "embed_out"),
        ("logits", "final_layer"), ("encoder.layers", "enc_layers"),
        ("decoder.layers", "dec_layers")),
}
ids = lambda *names: lambda inputs: not any(inputs[name].dtype.is_floating for name in names)
call = {
    "embedding": {"ids": "token", "if": ids("token")},
    "positional_encoding": {"x": "zeros_btd"},
    "scaled_dot_product_attention": {
        "q": lambda i: heads_first(i["query_bthk"]), "k": lambda i: heads_first(i["key_bsgk"]), "v": lambda i: heads_first(i["value_bsge"]),
        "mask": lambda i: hide(i["mask_bhts"]),
        "return": lambda output, i: (heads_first(output[0]), output[1]) if i["return_weights"] else heads_first(output[0]),
    },
    "multi_head_attention": {
        "v": "memory_bsd", "k": "memory_bsd", "q": "query_btd", "mask": lambda i: hide(i["mask_bhts"]),
        "return": lambda output, i: output if i["return_weights"] else output[0],
    },
    "feed_forward": {"x": "x_btd"},
    "encoder_layer": {"x": "x_btd", "mask": lambda i: hide(i["mask_bhts"])},
    "decoder_layer": {"x": "x_btd", "enc_output": "memory_bsd", "look_ahead_mask": look_ahead,
                      "padding_mask": lambda i: hide(i["cross_mask_bhts"])},
    "transformer": {"inp": "source", "tar": "target", "inp_mask": "source_mask_bs", "tar_mask": "target_mask_bt",
                    "if": ids("source", "target")},
}
config = CLASSIC | {"encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "activation": "gelu_erf",
          "norm_placement": "post", "final_norm": False, "positions": "sinusoidal", "max_positions": 0, "position_start": "row",
          "segments": 0, "embedding_norm": False, "scale_embedding": True, "share_embeddings": False, "tie_logits": False,
          "output_bias": True, "padding_id": 2}
