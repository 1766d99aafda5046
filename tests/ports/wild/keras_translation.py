"""Neural machine translation with a Transformer and Keras.

Portuguese -> English, following the notebook: positional embedding, the three
kinds of attention layer, feed forward, encoder, decoder, Transformer.
"""

import keras
import numpy as np
import tensorflow as tf
from rosettaformer.ports import CLASSIC, NotCovered

MAX_LENGTH = 2048


def positional_encoding(length, depth):
    positions = np.arange(length)[:, np.newaxis]  # (seq, 1)
    depths = np.arange(depth)[np.newaxis, :]  # (1, depth)

    angle_rates = 1 / np.power(10000.0, (2 * (depths // 2)) / depth)
    angle_rads = positions * angle_rates  # (seq, depth)

    # sin on the even indices, cos on the odd ones
    angle_rads[:, 0::2] = np.sin(angle_rads[:, 0::2])
    angle_rads[:, 1::2] = np.cos(angle_rads[:, 1::2])
    return angle_rads


class PositionalEncoding(keras.layers.Layer):
    def __init__(self, d_model, **kwargs):
        super().__init__(**kwargs)
        self.pos_encoding = positional_encoding(MAX_LENGTH, d_model)

    def call(self, positions):
        table = tf.constant(self.pos_encoding, dtype=self.compute_dtype)
        return tf.gather(table, positions)


class PositionalEmbedding(keras.layers.Layer):
    def __init__(self, vocab_size, d_model, scale=True, **kwargs):
        super().__init__(**kwargs)
        self.d_model = d_model
        self.scale = scale
        self.embedding = keras.layers.Embedding(vocab_size, d_model)
        self.pos_encoding = PositionalEncoding(d_model)

    def build(self, input_shape):
        self.embedding.build(input_shape)

    def call(self, x):
        length = tf.shape(x)[1]
        x = self.embedding(x)
        # This factor sets the relative scale of the embedding and the positions.
        if self.scale:
            x *= tf.math.sqrt(tf.cast(self.d_model, x.dtype))
        positions = tf.range(length)
        x = x + self.pos_encoding(positions)[tf.newaxis, :, :]
        return x


class BaseAttention(keras.layers.Layer):
    def __init__(self, *, epsilon, name=None, **kwargs):
        super().__init__(name=name)
        self.mha = keras.layers.MultiHeadAttention(**kwargs)
        self.layernorm = keras.layers.LayerNormalization(epsilon=epsilon)
        self.add = keras.layers.Add()


class CrossAttention(BaseAttention):
    def build(self, x_shape, context_shape):
        self.mha.build(x_shape, context_shape)
        self.layernorm.build(x_shape)

    def call(self, x, context, attention_mask=None):
        attn_output = self.mha(query=x, key=context, value=context, attention_mask=attention_mask)
        x = self.add([x, attn_output])
        x = self.layernorm(x)
        return x


class GlobalSelfAttention(BaseAttention):
    def build(self, x_shape):
        self.mha.build(x_shape, x_shape)
        self.layernorm.build(x_shape)

    def call(self, x, attention_mask=None):
        attn_output = self.mha(query=x, value=x, key=x, attention_mask=attention_mask)
        x = self.add([x, attn_output])
        x = self.layernorm(x)
        return x


class CausalSelfAttention(BaseAttention):
    def build(self, x_shape):
        self.mha.build(x_shape, x_shape)
        self.layernorm.build(x_shape)

    def call(self, x, attention_mask=None):
        attn_output = self.mha(
            query=x, value=x, key=x, attention_mask=attention_mask, use_causal_mask=True)
        x = self.add([x, attn_output])
        x = self.layernorm(x)
        return x


class FeedForward(keras.layers.Layer):
    def __init__(self, d_model, dff, epsilon, dropout_rate=0.1):
        super().__init__()
        self.seq = keras.Sequential(
            [
                keras.layers.Dense(dff, activation="relu"),
                keras.layers.Dense(d_model),
                keras.layers.Dropout(dropout_rate),
            ]
        )
        self.add = keras.layers.Add()
        self.layer_norm = keras.layers.LayerNormalization(epsilon=epsilon)

    def build(self, x_shape):
        self.seq.build(x_shape)
        self.layer_norm.build(x_shape)

    def call(self, x):
        x = self.add([x, self.seq(x)])
        x = self.layer_norm(x)
        return x


class EncoderLayer(keras.layers.Layer):
    def __init__(self, *, d_model, num_heads, key_dim, dff, epsilon, dropout_rate=0.1):
        super().__init__()
        self.self_attention = GlobalSelfAttention(
            num_heads=num_heads, key_dim=key_dim, dropout=dropout_rate, epsilon=epsilon)
        self.ffn = FeedForward(d_model, dff, epsilon)

    def build(self, x_shape):
        self.self_attention.build(x_shape)
        self.ffn.build(x_shape)

    def call(self, x, padding_mask=None):
        x = self.self_attention(x, attention_mask=padding_mask)
        x = self.ffn(x)
        return x


class Encoder(keras.layers.Layer):
    def __init__(self, *, num_layers, d_model, vocab_size, scale, dropout_rate=0.1, **layer_args):
        super().__init__()
        self.num_layers = num_layers
        self.pos_embedding = PositionalEmbedding(vocab_size, d_model, scale)
        self.enc_layers = [
            EncoderLayer(d_model=d_model, dropout_rate=dropout_rate, **layer_args)
            for _ in range(num_layers)
        ]
        self.dropout = keras.layers.Dropout(dropout_rate)

    def call(self, x, padding_mask=None):
        # `x` is token-IDs shape: (batch, seq_len)
        x = self.pos_embedding(x)
        x = self.dropout(x)
        for i in range(self.num_layers):
            x = self.enc_layers[i](x, padding_mask=padding_mask)
        return x  # Shape `(batch_size, seq_len, d_model)`.


class DecoderLayer(keras.layers.Layer):
    def __init__(self, *, d_model, num_heads, key_dim, dff, epsilon, dropout_rate=0.1):
        super().__init__()
        self.causal_self_attention = CausalSelfAttention(
            num_heads=num_heads, key_dim=key_dim, dropout=dropout_rate, epsilon=epsilon)
        self.cross_attention = CrossAttention(
            num_heads=num_heads, key_dim=key_dim, dropout=dropout_rate, epsilon=epsilon)
        self.ffn = FeedForward(d_model, dff, epsilon)

    def build(self, x_shape, context_shape):
        self.causal_self_attention.build(x_shape)
        self.cross_attention.build(x_shape, context_shape)
        self.ffn.build(x_shape)

    def call(self, x, context, look_mask=None, padding_mask=None):
        x = self.causal_self_attention(x=x, attention_mask=look_mask)
        x = self.cross_attention(x=x, context=context, attention_mask=padding_mask)
        x = self.ffn(x)  # Shape `(batch_size, seq_len, d_model)`.
        return x


class Decoder(keras.layers.Layer):
    def __init__(self, *, num_layers, d_model, vocab_size, scale, dropout_rate=0.1, **layer_args):
        super().__init__()
        self.num_layers = num_layers
        self.pos_embedding = PositionalEmbedding(vocab_size, d_model, scale)
        self.dropout = keras.layers.Dropout(dropout_rate)
        self.dec_layers = [
            DecoderLayer(d_model=d_model, dropout_rate=dropout_rate, **layer_args)
            for _ in range(num_layers)
        ]

    def call(self, x, context, look_mask=None, padding_mask=None):
        x = self.pos_embedding(x)  # (batch_size, target_seq_len, d_model)
        x = self.dropout(x)
        for i in range(self.num_layers):
            x = self.dec_layers[i](x, context, look_mask=look_mask, padding_mask=padding_mask)
        return x


class Transformer(keras.Model):
    def __init__(
        self, *, num_layers_encoder, num_layers_decoder, input_vocab_size, target_vocab_size,
        d_model, use_bias=True, pad_id=0, **layer_args):
        super().__init__()
        self.pad_id = pad_id
        self.encoder = Encoder(
            num_layers=num_layers_encoder, d_model=d_model, vocab_size=input_vocab_size,
            **layer_args)
        self.decoder = Decoder(
            num_layers=num_layers_decoder, d_model=d_model, vocab_size=target_vocab_size,
            **layer_args)
        self.final_layer = keras.layers.Dense(target_vocab_size, use_bias=use_bias)

    def make_mask(self, tokens, given):
        keep = tokens != self.pad_id if given is None else tf.cast(given, tf.bool)
        return keep[:, tf.newaxis, tf.newaxis, :]  # (batch, 1, 1, seq)

    def call(self, context, x, context_keep=None, x_keep=None):
        padding_mask = self.make_mask(context, context_keep)
        look_mask = self.make_mask(x, x_keep)
        context = self.encoder(context, padding_mask=padding_mask)
        x = self.decoder(
            x, context, look_mask=look_mask, padding_mask=padding_mask
        )  # (batch_size, target_len, d_model)
        logits = self.final_layer(x)  # (batch_size, target_len, target_vocab_size)
        return logits


framework = "tf"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3,
    "key_size": 4, "value_size": 4, "activation": "relu", "norm_placement": "post",
    "final_norm": False, "attention_bias": True, "share_embeddings": False, "tie_logits": False,
    "positions": "sinusoidal", "max_positions": 0, "position_offset": 0, "position_start": "row",
    "segments": 0, "embedding_norm": False, "pooler": False, "classes": 0,
    "masked_language_head": False}


def _layer_args(c):
    return {"num_heads": c.heads, "key_dim": c.key_size, "dff": c.feed_forward_width, "epsilon": c.epsilon}


def _in_dtype(make):
    def build(c, dtype):
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(keras.backend.standardize_dtype(dtype))
        try:
            return make(c)
        finally:
            keras.config.set_dtype_policy(before)

    return build


def _given(name):
    def take(inputs):
        if inputs[name] is None:
            raise NotCovered(f"needs {name}")
        return inputs[name]

    return take


def _ids(name):
    def take(inputs):
        if inputs[name].dtype.is_floating:
            raise NotCovered("rows of floats")
        return inputs[name]

    return take


def _in_table(inputs):
    positions = inputs["position_bt"]
    if int(tf.reduce_max(positions)) >= MAX_LENGTH:
        raise NotCovered("the table ends")
    return positions


def _with_causal(inputs):
    # Keras's own use_causal_mask puts the first query at the first key.
    mask = inputs["mask_bhts"]
    if inputs["causal"]:
        t, s = inputs["query_btd"].shape[1], inputs["memory_bsd"].shape[1]
        tril = tf.range(s)[tf.newaxis, :] <= tf.range(t)[:, tf.newaxis] + (s - t)
        tril = tril[tf.newaxis, tf.newaxis]
        mask = tril if mask is None else tf.logical_and(mask, tril)
    return mask


components = {
    "layer_norm": _in_dtype(lambda c: keras.layers.LayerNormalization(epsilon=c.epsilon)),
    "feed_forward": _in_dtype(lambda c: FeedForward(c.model_width, c.feed_forward_width, c.epsilon).seq),
    "positional_encoding": _in_dtype(lambda c: PositionalEncoding(c.model_width)),
    "multi_head_attention": _in_dtype(
        lambda c: keras.layers.MultiHeadAttention(num_heads=c.heads, key_dim=c.key_size, dropout=0.1)),
    "encoder_layer": _in_dtype(lambda c: EncoderLayer(d_model=c.model_width, **_layer_args(c))),
    "decoder_layer": _in_dtype(lambda c: DecoderLayer(d_model=c.model_width, **_layer_args(c))),
    "logits": _in_dtype(lambda c: keras.layers.Dense(c.target_vocabulary, use_bias=c.output_bias)),
    "transformer": _in_dtype(lambda c: Transformer(
        num_layers_encoder=c.encoder_layers, num_layers_decoder=c.decoder_layers,
        input_vocab_size=c.source_vocabulary, target_vocab_size=c.target_vocabulary,
        d_model=c.model_width, use_bias=c.output_bias, pad_id=c.padding_id, scale=c.scale_embedding,
        **_layer_args(c))),
}

call = {
    "layer_norm": {"inputs": "x_btd"},
    "feed_forward": {"inputs": "x_btd"},
    "positional_encoding": {"positions": _in_table},
    "multi_head_attention": {"query": "query_btd", "value": "memory_bsd",
        "attention_mask": _with_causal, "return_attention_scores": "return_weights"},
    "encoder_layer": {"x": "x_btd", "padding_mask": "mask_bhts"},
    "decoder_layer": {"x": "x_btd", "context": _given("memory_bsd"),
        "look_mask": "self_mask_bhts", "padding_mask": "cross_mask_bhts"},
    "logits": {"inputs": "x_btd"},
    "transformer": {"context": _ids("source"), "x": _ids("target"),
        "context_keep": "source_mask_bs", "x_keep": "target_mask_bt"},
}

weights = {
    "layer_norm": (("scale", "gamma", "d"), ("offset", "beta", "d")),
    "feed_forward": (("hidden.kernel", "layers.0.kernel", "d f"),
        ("hidden.bias", "layers.0.bias", "f"), ("output.kernel", "layers.1.kernel", "f d"),
        ("output.bias", "layers.1.bias", "d")),
    "multi_head_attention": (("query.kernel", "query_dense.kernel", "d h k"),
        ("query.bias", "query_dense.bias", "h k"), ("key.kernel", "key_dense.kernel", "d g k"),
        ("key.bias", "key_dense.bias", "g k"), ("value.kernel", "value_dense.kernel", "d g e"),
        ("value.bias", "value_dense.bias", "g e"),
        ("output.kernel", "output_dense.kernel", "h e d"),
        ("output.bias", "output_dense.bias", "d")),
    "encoder_layer": (("self_attention", "self_attention.mha"),
        ("self_attention_norm", "self_attention.layernorm"), ("feed_forward", "ffn.seq"),
        ("feed_forward_norm", "ffn.layer_norm")),
    "decoder_layer": (("self_attention", "causal_self_attention.mha"),
        ("self_attention_norm", "causal_self_attention.layernorm"),
        ("cross_attention", "cross_attention.mha"),
        ("cross_attention_norm", "cross_attention.layernorm"), ("feed_forward", "ffn.seq"),
        ("feed_forward_norm", "ffn.layer_norm")),
    "logits": (("kernel", "kernel", "d v"), ("bias", "bias", "v")),
    "transformer": (("source_embedding.table", "encoder.pos_embedding.embedding.embeddings", "v d"),
        ("target_embedding.table", "decoder.pos_embedding.embedding.embeddings", "v d"),
        ("encoder.layers", "encoder.enc_layers"), ("decoder.layers", "decoder.dec_layers"),
        ("logits", "final_layer")),
}
