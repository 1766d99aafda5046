"""BERT in Flax NNX: an encoder with learned positions and segments, a pooler and a classifier."""
import jax
import jax.numpy as jnp
from flax import nnx
from rosettaformer.ports import CLASSIC


class BertEmbeddings(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.word_embeddings = nnx.Embed(c.source_vocabulary, c.model_width, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.position_embeddings = nnx.Embed(c.max_positions, c.model_width, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.token_type_embeddings = nnx.Embed(c.segments, c.model_width, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.layer_norm = make_norm(c, dtype, rngs)

    def __call__(self, input_ids, token_type_ids=None):
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        position_ids = jnp.arange(input_ids.shape[-1])[None, :]
        hidden = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        hidden = hidden + self.position_embeddings(position_ids)
        return self.layer_norm(hidden)


def make_norm(c, dtype, rngs):
    return nnx.LayerNorm(c.model_width, epsilon=c.epsilon, use_fast_variance=False, dtype=dtype, param_dtype=dtype, rngs=rngs)


def make_dense(i, o, dtype, rngs, use_bias=True):
    return nnx.Linear(i, o, use_bias=use_bias, dtype=dtype, param_dtype=dtype, rngs=rngs)


class BertSelfAttention(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.num_heads = c.heads
        self.head_dim = c.model_width // c.heads
        d, bias = c.model_width, c.attention_bias
        self.query = make_dense(d, d, dtype, rngs, bias)
        self.key = make_dense(d, d, dtype, rngs, bias)
        self.value = make_dense(d, d, dtype, rngs, bias)
        self.output = make_dense(d, d, dtype, rngs, bias)

    def _split_heads(self, x):
        return x.reshape(x.shape[:2] + (self.num_heads, self.head_dim))

    def __call__(self, hidden, attention_mask=None):
        q = self._split_heads(self.query(hidden))
        k = self._split_heads(self.key(hidden))
        v = self._split_heads(self.value(hidden))
        q = q / jnp.sqrt(self.head_dim).astype(q.dtype)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        if attention_mask is not None:
            scores = jnp.where(attention_mask, scores, jnp.finfo(scores.dtype).min)
        probs = jax.nn.softmax(scores, axis=-1)
        if attention_mask is not None:
            probs = jnp.where(attention_mask, probs, 0)
        context = jnp.einsum("bhqk,bkhd->bqhd", probs, v)
        context = context.reshape(context.shape[:2] + (-1,))
        return self.output(context)


class BertFeedForward(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.intermediate = make_dense(c.model_width, c.feed_forward_width, dtype, rngs)
        self.output = make_dense(c.feed_forward_width, c.model_width, dtype, rngs)

    def __call__(self, hidden):
        return self.output(jax.nn.gelu(self.intermediate(hidden), approximate=False))


class BertLayer(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.attention = BertSelfAttention(c, dtype, rngs)
        self.attention_norm = make_norm(c, dtype, rngs)
        self.mlp = BertFeedForward(c, dtype, rngs)
        self.output_norm = make_norm(c, dtype, rngs)

    def __call__(self, hidden, attention_mask=None):
        hidden = self.attention_norm(hidden + self.attention(hidden, attention_mask))
        return self.output_norm(hidden + self.mlp(hidden))


class BertEncoder(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.layers = nnx.List([BertLayer(c, dtype, rngs) for _ in range(c.encoder_layers)])

    def __call__(self, hidden, attention_mask=None):
        for layer in self.layers:
            hidden = layer(hidden, attention_mask)
        return hidden


class BertPooler(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.dense = make_dense(c.model_width, c.model_width, dtype, rngs)

    def __call__(self, hidden):
        return jnp.tanh(self.dense(hidden[:, 0]))


class BertPredictionHead(nnx.Module):
    """The head of masked language modelling."""

    def __init__(self, c, dtype, rngs):
        self.transform = make_dense(c.model_width, c.model_width, dtype, rngs)
        self.layer_norm = make_norm(c, dtype, rngs)
        self.decoder = make_dense(c.model_width, c.source_vocabulary, dtype, rngs)

    def __call__(self, hidden):
        hidden = jax.nn.gelu(self.transform(hidden), approximate=False)
        return self.decoder(self.layer_norm(hidden))


class BertForSequenceClassification(nnx.Module):
    def __init__(self, c, dtype, rngs):
        self.pad = c.padding_id
        self.embeddings = BertEmbeddings(c, dtype, rngs)
        self.encoder = BertEncoder(c, dtype, rngs)
        self.pooler = BertPooler(c, dtype, rngs)
        self.classifier = make_dense(c.model_width, c.classes, dtype, rngs)

    def __call__(self, input_ids, attention_mask=None, token_type_ids=None):
        if attention_mask is None:
            attention_mask = input_ids != self.pad
        mask = attention_mask[:, None, None, :]
        hidden = self.encoder(self.embeddings(input_ids, token_type_ids), mask)
        return self.classifier(self.pooler(hidden))


def build(module):
    return lambda c, dtype: module(c, dtype, nnx.Rngs(0))


framework = "jax"
dtypes = ("float64", "float32")
modes = ("eager", "compiled")
components = {
    "layer_norm": build(make_norm),
    "self_attention": build(BertSelfAttention),
    "feed_forward": build(BertFeedForward),
    "encoder_layer": build(BertLayer),
    "encoder": build(BertEncoder),
    "pooler": build(BertPooler),
    "masked_language_head": build(BertPredictionHead),
    "classify": build(BertForSequenceClassification),
}
weights = {
    "layer_norm": (("scale", "scale", "d"), ("offset", "bias", "d")),
    "embedding": (("table", "embedding", "v d"),),
    "position_embedding": (("table", "embedding", "p d"),),
    "segment_embedding": (("table", "embedding", "a d"),),
    "self_attention": (("query.kernel", "query.kernel", "d (h k)"),
        ("query.bias", "query.bias", "(h k)"), ("key.kernel", "key.kernel", "d (g k)"),
        ("key.bias", "key.bias", "(g k)"), ("value.kernel", "value.kernel", "d (g e)"),
        ("value.bias", "value.bias", "(g e)"), ("output.kernel", "output.kernel", "(h e) d"),
        ("output.bias", "output.bias", "d")),
    "feed_forward": (("hidden.kernel", "intermediate.kernel", "d f"),
        ("hidden.bias", "intermediate.bias", "f"), ("output.kernel", "output.kernel", "f d"),
        ("output.bias", "output.bias", "d")),
    "encoder_layer": (("self_attention", "attention"), ("self_attention_norm", "attention_norm"),
        ("feed_forward", "mlp"), ("feed_forward_norm", "output_norm")),
    "pooler": (("kernel", "dense.kernel", "d r"), ("bias", "dense.bias", "r")),
    "classifier": (("kernel", "kernel", "r c"), ("bias", "bias", "c")),
    "masked_language_head": (("hidden.kernel", "transform.kernel", "d r"),
        ("hidden.bias", "transform.bias", "r"), ("norm", "layer_norm"),
        ("logits.kernel", "decoder.kernel", "d v"), ("logits.bias", "decoder.bias", "v")),
    "transformer": (("source_embedding", "embeddings.word_embeddings"),
        ("source_position_embedding", "embeddings.position_embeddings"),
        ("source_segment_embedding", "embeddings.token_type_embeddings"),
        ("source_embedding_norm", "embeddings.layer_norm")),
}
weights["multi_head_attention"] = weights["self_attention"]
call = {
    "layer_norm": {"x": "x_btd"},
    "self_attention": {"hidden": "x_btd", "attention_mask": "mask_bhts"},
    "feed_forward": {"hidden": "x_btd"},
    "encoder_layer": {"hidden": "x_btd", "attention_mask": "mask_bhts"},
    "encoder": {"hidden": "x_bsd", "attention_mask": "mask_bhts"},
    "pooler": {"hidden": "x_bsd"},
    "masked_language_head": {"hidden": "x_bsd"},
    "classify": {"input_ids": "source", "attention_mask": "source_mask_bs", "token_type_ids": "segment_bs",
                 "if": lambda inputs: jnp.issubdtype(inputs["source"].dtype, jnp.integer)},
}
config = CLASSIC | {"model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "activation": "gelu_erf",
          "norm_placement": "post", "final_norm": False, "positions": "learned", "max_positions": 16, "position_offset": 0,
          "position_start": "row", "segments": 2, "embedding_norm": True, "scale_embedding": False, "share_embeddings": False,
          "pooler_activation": "tanh", "output_bias": True, "decoder_layers": 0, "padding_id": 2}
