"""An encoder-decoder Transformer in Keras 3, put together from small keras-hub style layers."""
import math
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from keras import ops

from rosettaformer.ports import CLASSIC, NotCovered


def compute_causal_mask(query_length, key_length):
    """`(1, query_length, key_length)`; the last query lines up with the last key."""
    i = ops.expand_dims(ops.arange(query_length) + (key_length - query_length), 1)
    j = ops.expand_dims(ops.arange(key_length), 0)
    return ops.expand_dims(ops.greater_equal(i, j), 0)


def compute_padding_mask(token_ids, padding_id, padding_mask=None):
    """`(batch, length)`, unless the caller brought a mask of their own."""
    if padding_mask is None:
        padding_mask = ops.not_equal(token_ids, padding_id)
    return ops.cast(padding_mask, "bool")


def merge_masks(*masks):
    """The conjunction of all masks that are not None; `(b, s)` becomes `(b, 1, s)` on the way."""
    merged = None
    for mask in masks:
        if mask is None:
            continue
        mask = ops.cast(mask, "bool")
        if len(mask.shape) == 2:
            mask = ops.expand_dims(mask, 1)
        if merged is not None and len(mask.shape) < len(merged.shape):
            mask = ops.expand_dims(mask, 1)
        if merged is not None and len(merged.shape) < len(mask.shape):
            merged = ops.expand_dims(merged, 1)
        merged = mask if merged is None else ops.logical_and(merged, mask)
    return merged


def gelu(x):
    return 0.5 * x * (1 + ops.erf(x / math.sqrt(2)))


def gelu_approximate(x):
    return 0.5 * x * (1 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * ops.power(x, 3))))


def quick_gelu(x):
    return x * ops.sigmoid(1.702 * x)


ACTIVATIONS = {
    "relu": keras.activations.relu,
    "gelu_erf": gelu,
    "gelu_tanh": gelu_approximate,
    "gelu_sigmoid": quick_gelu,
}


class SinePositionEncoding(keras.layers.Layer):
    def __init__(self, hidden_dim, max_wavelength=10000, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.max_wavelength = max_wavelength

    def call(self, positions):
        # Angles in float64: far positions lose all their digits in anything less.
        feature = ops.arange(self.hidden_dim)
        exponents = ops.cast(2 * (feature // 2), "float64") / self.hidden_dim
        timescales = ops.power(ops.convert_to_tensor(1 / self.max_wavelength, dtype="float64"), exponents)
        angles = ops.expand_dims(ops.cast(positions, "float64"), -1) * timescales
        cos_mask = ops.cast(feature % 2, "float64")
        sin_mask = 1 - cos_mask
        return ops.cast(ops.sin(angles) * sin_mask + ops.cos(angles) * cos_mask, self.compute_dtype)


class TokenAndSinePositionEmbedding(keras.layers.Layer):
    def __init__(self, token_embedding, hidden_dim, scale=True, start_at_first_token=True, offset=0, **kwargs):
        super().__init__(**kwargs)
        self.token_embedding = token_embedding
        self.position_encoding = SinePositionEncoding(hidden_dim, dtype=self.dtype_policy)
        self.scale = hidden_dim**0.5 if scale else 1.0
        self.start_at_first_token = start_at_first_token
        self.offset = offset

    def call(self, token_ids, real=None):
        x = self.token_embedding(token_ids) * self.scale
        positions = ops.expand_dims(ops.arange(ops.shape(token_ids)[1]), 0)
        if self.start_at_first_token and real is not None:
            seen = ops.cumsum(ops.cast(real, "int32"), axis=1)
            leading = ops.sum(ops.cast(ops.equal(seen, 0), positions.dtype), axis=1, keepdims=True)
            positions = positions - leading
            positions = ops.maximum(positions, 0)
        return x + self.position_encoding(positions + self.offset)


class Attention(keras.layers.Layer):
    """MultiHeadAttention, or its grouped sibling, plus a causal mask on request."""

    def __init__(self, num_heads, num_kv_heads, key_dim, value_dim, use_bias=True, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        common = dict(use_bias=use_bias, dropout=dropout, dtype=self.dtype_policy, name="mha")
        if num_kv_heads == num_heads:
            self.mha = keras.layers.MultiHeadAttention(num_heads, key_dim, value_dim, **common)
            # Keras casts this Python float by way of float32; a NumPy scalar keeps its digits.
            self.mha._inverse_sqrt_key_dim = 1 / np.sqrt(np.float64(key_dim))
        elif key_dim == value_dim:
            self.mha = keras.layers.GroupedQueryAttention(key_dim, num_heads, num_kv_heads, **common)
            self.mha._inverse_sqrt_head_dim = 1 / np.sqrt(np.float64(key_dim))
        else:
            raise NotCovered("GroupedQueryAttention has one head_dim")

    def call(self, x, memory=None, mask=None, causal=False):
        memory = x if memory is None else memory
        if causal:
            mask = merge_masks(mask, compute_causal_mask(ops.shape(x)[1], ops.shape(memory)[1]))
        return self.mha(query=x, value=memory, key=memory, attention_mask=mask)


class FeedForward(keras.layers.Layer):
    def __init__(self, intermediate_dim, hidden_dim, activation="relu", dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.intermediate_dense = keras.layers.EinsumDense(
            "btd,df->btf", output_shape=(None, intermediate_dim), bias_axes="f",
            activation=ACTIVATIONS[activation], dtype=self.dtype_policy, name="intermediate")
        self.output_dense = keras.layers.EinsumDense(
            "btf,fd->btd", output_shape=(None, hidden_dim), bias_axes="d", dtype=self.dtype_policy, name="output")
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def call(self, x):
        return self.dropout(self.output_dense(self.intermediate_dense(x)))


class TransformerBlock(keras.layers.Layer):
    """What encoder and decoder layers share: how a sub-layer, its norm and its residual go together."""

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.normalize_first = config.norm_placement == "pre"

    def make_attention(self, name):
        c = self.config
        return Attention(c.heads, c.key_value_heads, c.key_size, c.value_size, use_bias=c.attention_bias,
                         dtype=self.dtype_policy, name=name)

    def make_feed_forward(self, name):
        c = self.config
        return FeedForward(c.feed_forward_width, c.model_width, c.activation, dtype=self.dtype_policy, name=name)

    def make_norm(self, name):
        return keras.layers.LayerNormalization(epsilon=self.config.epsilon, dtype=self.dtype_policy, name=name)

    def residual(self, x, sublayer, norm):
        if self.normalize_first:
            return x + sublayer(norm(x))
        return norm(x + sublayer(x))


class TransformerEncoder(TransformerBlock):
    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.self_attention = self.make_attention("self_attention")
        self.self_attention_norm = self.make_norm("self_attention_norm")
        self.feedforward = self.make_feed_forward("feedforward")
        self.feedforward_norm = self.make_norm("feedforward_norm")

    def call(self, x, attend=None):
        x = self.residual(x, lambda y: self.self_attention(y, mask=attend), self.self_attention_norm)
        return self.residual(x, self.feedforward, self.feedforward_norm)


class TransformerDecoder(TransformerBlock):
    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.self_attention = self.make_attention("self_attention")
        self.self_attention_norm = self.make_norm("self_attention_norm")
        self.cross_attention = self.make_attention("cross_attention")
        self.cross_attention_norm = self.make_norm("cross_attention_norm")
        self.feedforward = self.make_feed_forward("feedforward")
        self.feedforward_norm = self.make_norm("feedforward_norm")

    def call(self, x, memory, attend=None, cross_attend=None):
        x = self.residual(x, lambda y: self.self_attention(y, mask=attend, causal=True), self.self_attention_norm)
        x = self.residual(x, lambda y: self.cross_attention(y, memory, mask=cross_attend), self.cross_attention_norm)
        return self.residual(x, self.feedforward, self.feedforward_norm)


class EncoderStack(keras.layers.Layer):
    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [TransformerEncoder(config, dtype=self.dtype_policy, name=f"block_{i}")
                       for i in range(config.encoder_layers)]
        self.final_norm = None
        if config.final_norm:
            self.final_norm = keras.layers.LayerNormalization(
                epsilon=config.epsilon, dtype=self.dtype_policy, name="final_norm")

    def call(self, x, attend=None):
        for block in self.blocks:
            x = block(x, attend=attend)
        return x if self.final_norm is None else self.final_norm(x)


class DecoderStack(keras.layers.Layer):
    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [TransformerDecoder(config, dtype=self.dtype_policy, name=f"block_{i}")
                       for i in range(config.decoder_layers)]
        self.final_norm = None
        if config.final_norm:
            self.final_norm = keras.layers.LayerNormalization(
                epsilon=config.epsilon, dtype=self.dtype_policy, name="final_norm")

    def call(self, x, memory, attend=None, cross_attend=None):
        for block in self.blocks:
            x = block(x, memory, attend=attend, cross_attend=cross_attend)
        return x if self.final_norm is None else self.final_norm(x)


class Seq2SeqTransformer(keras.Model):
    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.padding_id = config.padding_id
        d, policy = config.model_width, self.dtype_policy
        self.target_tokens = keras.layers.Embedding(config.target_vocabulary, d, dtype=policy, name="target_tokens")
        self.source_tokens = self.target_tokens
        if not config.share_embeddings:
            self.source_tokens = keras.layers.Embedding(
                config.source_vocabulary, d, dtype=policy, name="source_tokens")
        options = dict(scale=config.scale_embedding, offset=config.position_offset, dtype=policy,
                       start_at_first_token=config.position_start == "first_token")
        self.source_embedding = TokenAndSinePositionEmbedding(self.source_tokens, d, name="source_embed", **options)
        self.target_embedding = TokenAndSinePositionEmbedding(self.target_tokens, d, name="target_embed", **options)
        self.encoder = EncoderStack(config, dtype=policy, name="encoder")
        self.decoder = DecoderStack(config, dtype=policy, name="decoder")
        self.tie_logits = config.tie_logits
        if self.tie_logits:
            if config.output_bias:
                self.bias = self.add_weight(shape=(config.target_vocabulary,), name="output_bias")
        else:
            self.lm_head = keras.layers.EinsumDense(
                "btd,dv->btv", output_shape=(None, config.target_vocabulary),
                bias_axes="v" if config.output_bias else None, dtype=policy, name="lm_head")
        self.output_bias = config.output_bias

    def encode(self, source, source_mask):
        return self.encoder(self.source_embedding(source, real=source_mask), attend=merge_masks(source_mask))

    def decode(self, target, target_mask, memory, source_mask):
        x = self.target_embedding(target, real=target_mask)
        return self.decoder(x, memory, attend=merge_masks(target_mask), cross_attend=merge_masks(source_mask))

    def call(self, source, target, source_padding=None, target_padding=None):
        if len(source.shape) != 2:
            raise NotCovered("keras.layers.Embedding takes ids")
        source_mask = compute_padding_mask(source, self.padding_id, source_padding)
        target_mask = compute_padding_mask(target, self.padding_id, target_padding)
        x = self.decode(target, target_mask, self.encode(source, source_mask), source_mask)
        if not self.tie_logits:
            return self.lm_head(x)
        logits = ops.matmul(x, ops.transpose(self.target_tokens.embeddings))
        return logits + self.bias if self.output_bias else logits


def built(make):
    return lambda config, dtype: make(config, dtype=dtype.name)


framework = "tf"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "positions": "sinusoidal", "segments": 0, "embedding_norm": False, "pooler": False}
components = {
    "layer_norm": built(lambda c, dtype: keras.layers.LayerNormalization(epsilon=c.epsilon, dtype=dtype)),
    "feed_forward": built(lambda c, dtype: FeedForward(c.feed_forward_width, c.model_width, c.activation, dtype=dtype)),
    "positional_encoding": built(lambda c, dtype: SinePositionEncoding(c.model_width, dtype=dtype)),
    "multi_head_attention": built(lambda c, dtype: Attention(
        c.heads, c.key_value_heads, c.key_size, c.value_size, use_bias=c.attention_bias, dtype=dtype)),
    "encoder_layer": built(TransformerEncoder),
    "decoder_layer": built(TransformerDecoder),
    "encoder": built(EncoderStack),
    "decoder": built(DecoderStack),
    "transformer": built(Seq2SeqTransformer),
}
weights = {
    "layer_norm": (("scale", "gamma", "d"), ("offset", "beta", "d")),
    "feed_forward": (("hidden.kernel", "intermediate_dense.kernel", "d f"),
        ("hidden.bias", "intermediate_dense.bias", "f"),
        ("output.kernel", "output_dense.kernel", "f d"), ("output.bias", "output_dense.bias", "d")),
    "multi_head_attention": (("query.kernel", "mha._query_dense.kernel", "d h k"),
        ("query.bias", "mha._query_dense.bias", "h k"),
        ("key.kernel", "mha._key_dense.kernel", "d g k"),
        ("key.bias", "mha._key_dense.bias", "g k"),
        ("value.kernel", "mha._value_dense.kernel", "d g e"),
        ("value.bias", "mha._value_dense.bias", "g e"),
        ("output.kernel", "mha._output_dense.kernel", "h e d"),
        ("output.bias", "mha._output_dense.bias", "d")),
    "encoder_layer": (("feed_forward", "feedforward"), ("feed_forward_norm", "feedforward_norm")),
    "decoder_layer": (("feed_forward", "feedforward"), ("feed_forward_norm", "feedforward_norm")),
    "encoder": (("layers.0", "blocks.0"), ("layers.1", "blocks.1"), ("layers.2", "blocks.2")),
    "decoder": (("layers.0", "blocks.0"), ("layers.1", "blocks.1"), ("layers.2", "blocks.2")),
    "transformer": (("source_embedding.table", "source_tokens.embeddings", "v d"),
        ("target_embedding.table", "target_tokens.embeddings", "v d"),
        ("logits.kernel", "lm_head.kernel", "d v"), ("logits.bias", "lm_head.bias", "v")),
}
call = {
    "layer_norm": {"inputs": "x_btd"},
    "feed_forward": {"x": "x_btd"},
    "positional_encoding": {"positions": "position_bt"},
    "multi_head_attention": {"x": "query_btd", "memory": "memory_bsd", "mask": "mask_bhts", "causal": "causal"},
    "encoder_layer": {"x": "x_btd", "attend": "mask_bhts"},
    "decoder_layer": {"x": "x_btd", "memory": "memory_bsd", "attend": "self_mask_bhts",
                      "cross_attend": "cross_mask_bhts"},
    "encoder": {"x": "x_bsd", "attend": "mask_bhts"},
    "decoder": {"x": "x_btd", "memory": "memory_bsd", "attend": "self_mask_bhts", "cross_attend": "cross_mask_bhts"},
    "transformer": {"source": "source", "target": "target", "source_padding": "source_mask_bs",
                    "target_padding": "target_mask_bt"},
}
