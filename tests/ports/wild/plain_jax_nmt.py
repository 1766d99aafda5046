"""Attention Is All You Need in plain JAX: nested dicts of parameters, einsum for projections, vmap over batch and
heads, lax.scan over the layers. Post-norm, separate tables, grouped keys and values where there are fewer of them.

Letters: b batch, t queries, s keys, d model, h heads, g key/value heads, k key size, e value size, f hidden, v words.
"""
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, vmap


def init_norm(c, dtype):
    return {"gamma": jnp.ones(c.model_width, dtype), "beta": jnp.zeros(c.model_width, dtype)}


def init_attention(c, dtype):
    d, h, g, k, e = c.model_width, c.heads, c.key_value_heads, c.key_size, c.value_size
    p = {"wq": (d, h, k), "wk": (d, g, k), "wv": (d, g, e), "wo": (h, e, d)}
    if c.attention_bias:
        p |= {"bq": (h, k), "bk": (g, k), "bv": (g, e), "bo": (d,)}
    return {name: jnp.zeros(shape, dtype) for name, shape in p.items()}


def init_mlp(c, dtype):
    d, f = c.model_width, c.feed_forward_width
    return {"w1": jnp.zeros((d, f), dtype), "b1": jnp.zeros(f, dtype),
            "w2": jnp.zeros((f, d), dtype), "b2": jnp.zeros(d, dtype)}


def init_table(size):
    return lambda c, dtype: {"table": jnp.zeros((size(c), c.model_width), dtype)}


def init_encoder_layer(c, dtype):
    return {"attn": init_attention(c, dtype), "norm1": init_norm(c, dtype),
            "mlp": init_mlp(c, dtype), "norm2": init_norm(c, dtype)}


def init_decoder_layer(c, dtype):
    return {"attn": init_attention(c, dtype), "norm1": init_norm(c, dtype),
            "xattn": init_attention(c, dtype), "norm2": init_norm(c, dtype),
            "mlp": init_mlp(c, dtype), "norm3": init_norm(c, dtype)}


def init_encoder(c, dtype):
    return {"layers": {str(i): init_encoder_layer(c, dtype) for i in range(c.encoder_layers)}}


def init_decoder(c, dtype):
    return {"layers": {str(i): init_decoder_layer(c, dtype) for i in range(c.decoder_layers)}}


def init_head(c, dtype):
    p = {"w": jnp.zeros((c.model_width, c.target_vocabulary), dtype)}
    return p | {"b": jnp.zeros(c.target_vocabulary, dtype)} if c.output_bias else p


def init_transformer(c, dtype):
    return {"src": init_table(lambda c: c.source_vocabulary)(c, dtype),
            "tgt": init_table(lambda c: c.target_vocabulary)(c, dtype),
            "encoder": init_encoder(c, dtype), "decoder": init_decoder(c, dtype), "head": init_head(c, dtype)}


def norm(p, c, x):
    mu = x.mean(-1, keepdims=True)
    var = jnp.square(x - mu).mean(-1, keepdims=True)
    return p["gamma"] * (x - mu) / jnp.sqrt(var + c.epsilon) + p["beta"]


ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x),
}


def mlp(p, c, x):
    hidden = jnp.einsum("btd,df->btf", x, p["w1"]) + p["b1"]
    hidden = ACTIVATIONS[c.activation](hidden)
    return jnp.einsum("btf,fd->btd", hidden, p["w2"]) + p["b2"]


def lookup(p, c, token):
    if jnp.issubdtype(token.dtype, jnp.floating):
        raise NotCovered("ids only")
    table = p["table"]
    x = jnp.take(table, token, axis=0)
    return x * math.sqrt(table.shape[1]) if c.scale_embedding else x


def sinusoid(position, d, dtype):
    feature = np.arange(d)
    rate = 10000.0 ** -(2 * (feature // 2) / d)
    angle = np.asarray(position)[..., None] * rate
    return jnp.asarray(np.where(feature % 2 == 0, np.sin(angle), np.cos(angle)), dtype)


def token_positions(mask):
    """0 at the first word of a row, whatever padding stands before it."""
    leading = jnp.sum(jnp.cumsum(mask, axis=-1) == 0, axis=-1, keepdims=True)
    return jnp.maximum(jnp.arange(mask.shape[1])[None, :] - leading, 0)


def masked_softmax(logits, allowed=None):
    if allowed is None:
        allowed = jnp.ones(logits.shape, bool)
    peak = jnp.max(jnp.where(allowed, logits, -jnp.inf), axis=-1, keepdims=True, initial=-jnp.inf)
    peak = jnp.where(jnp.isfinite(peak), peak, 0)
    p = jnp.where(allowed, jnp.exp(jnp.where(allowed, logits - peak, 0)), 0)
    total = p.sum(axis=-1, keepdims=True)
    return p / jnp.where(total == 0, 1, total)


def head(q, k, v, allowed, bias):
    """One head of one sentence: t k, s k, s e, t s, t s -> t e, t s."""
    weights = masked_softmax(q @ k.T / math.sqrt(q.shape[1]) + bias, allowed)
    return weights @ v, weights


def attend(q, k, v, mask=None, bias=None, causal=False, return_weights=False):
    b, t, h, _ = q.shape
    s, g = k.shape[1:3]
    mask = jnp.ones((b, h, t, s), bool) if mask is None else jnp.broadcast_to(mask, (b, h, t, s))
    bias = jnp.zeros((b, h, t, s), q.dtype) if bias is None else jnp.broadcast_to(bias, (b, h, t, s))
    if causal:
        mask = mask & jnp.tri(t, s, s - t, dtype=bool)
    q = q.reshape(b, t, g, h // g, q.shape[3]).transpose(0, 2, 3, 1, 4)  # b g r t k
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)  # b g s k
    mask, bias = (x.reshape(b, g, h // g, t, s) for x in (mask, bias))
    sharers = vmap(head, in_axes=(0, None, None, 0, 0))  # the query heads that share keys and values
    groups = vmap(sharers, in_axes=(0, 0, 0, 0, 0))
    batch = vmap(groups, in_axes=(0, 0, 0, 0, 0))
    out, weights = batch(q, k, v, mask, bias)
    out = out.reshape(b, h, t, v.shape[3]).transpose(0, 2, 1, 3)
    return (out, weights.reshape(b, h, t, s)) if return_weights else out


def multi_head(p, c, x, memory, mask=None, bias=None, causal=False, return_weights=False):
    q = jnp.einsum("btd,dhk->bthk", x, p["wq"]) + p.get("bq", 0)
    k = jnp.einsum("bsd,dgk->bsgk", memory, p["wk"]) + p.get("bk", 0)
    v = jnp.einsum("bsd,dge->bsge", memory, p["wv"]) + p.get("bv", 0)
    heads, weights = attend(q, k, v, mask, bias, causal, return_weights=True)
    projected = vmap(lambda y, w: y @ w, in_axes=(2, 0))(heads, p["wo"])  # h b t d
    out = projected.sum(0) + p.get("bo", 0)
    return (out, weights) if return_weights else out


def encoder_layer(p, c, x, mask=None):
    x = norm(p["norm1"], c, x + multi_head(p["attn"], c, x, x, mask))
    return norm(p["norm2"], c, x + mlp(p["mlp"], c, x))


def decoder_layer(p, c, x, memory, self_mask=None, cross_mask=None):
    y = norm(p["norm1"], c, x + multi_head(p["attn"], c, x, x, self_mask, causal=True))
    y = norm(p["norm2"], c, y + multi_head(p["xattn"], c, y, memory, cross_mask))
    return norm(p["norm3"], c, y + mlp(p["mlp"], c, y))


def stack(layers):
    """{"0": tree, "1": tree, ...} -> one tree whose leaves have the layers first, to scan over."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(layers[str(i)] for i in range(len(layers))))


def encoder(p, c, x, mask=None):
    if not p["layers"]:
        return x

    def step(h, layer):
        h = encoder_layer(layer, c, h, mask)
        return h, h

    _, states = lax.scan(step, x, stack(p["layers"]))  # every layer's output, for probing
    return states[-1]


def decoder(p, c, x, memory, self_mask=None, cross_mask=None):
    if not p["layers"]:
        return x

    def step(y, layer):
        return decoder_layer(layer, c, y, memory, self_mask, cross_mask), None

    y, _ = lax.scan(step, x, stack(p["layers"]))
    return y


def logits(p, c, x):
    return jnp.einsum("btd,dv->btv", x, p["w"]) + p.get("b", 0)


def embed(p, c, token, mask):
    x = lookup(p, c, token)
    table = sinusoid(np.arange(token.shape[1]), c.model_width, x.dtype)
    return x + table[token_positions(mask)]


def transformer(p, c, source, target, source_mask=None, target_mask=None):
    real = lambda token: jnp.ones(token.shape, bool) if c.padding_id is None else token != c.padding_id
    source_mask = real(source) if source_mask is None else source_mask
    target_mask = real(target) if target_mask is None else target_mask
    source_keys, target_keys = source_mask[:, None, None, :], target_mask[:, None, None, :]
    memory = encoder(p["encoder"], c, embed(p["src"], c, source, source_mask), source_keys)
    y = decoder(p["decoder"], c, embed(p["tgt"], c, target, target_mask), memory, target_keys, source_keys)
    return logits(p["head"], c, y)


import flax.linen as nn  # noqa: E402  # holds the parameters
from rosettaformer.ports import CLASSIC, NotCovered  # noqa: E402


class Held(nn.Module):
    function: object
    init_tree: object
    c: object
    dtype: object

    @nn.compact
    def __call__(self, **inputs):
        tree = self.init_tree(self.c, self.dtype)
        p = {name: self.param(name, lambda _, value=value: value) for name, value in tree.items()}
        return self.function(p, self.c, **inputs)


def held(function, init_tree):
    return lambda c, dtype: Held(function, init_tree, c, dtype)


framework = "jax"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "positions": "sinusoidal", "position_start": "first_token", "norm_placement": "post", "final_norm": False,
          "share_embeddings": False, "tie_logits": False}
components = {
    "layer_norm": held(norm, init_norm), "feed_forward": held(mlp, init_mlp),
    "embedding": held(lookup, init_table(lambda c: c.source_vocabulary)),
    "positional_encoding": lambda c, dtype: lambda position: sinusoid(position, c.model_width, dtype),
    "softmax": lambda c, dtype: masked_softmax,
    "scaled_dot_product_attention": lambda c, dtype: attend,
    "multi_head_attention": held(multi_head, init_attention),
    "encoder_layer": held(encoder_layer, init_encoder_layer), "decoder_layer": held(decoder_layer, init_decoder_layer),
    "encoder": held(encoder, init_encoder), "decoder": held(decoder, init_decoder),
    "logits": held(logits, init_head), "transformer": held(transformer, init_transformer),
}
weights = {
    "layer_norm": (("scale", "gamma", "d"), ("offset", "beta", "d")),
    "feed_forward": (("hidden.kernel", "w1", "d f"), ("hidden.bias", "b1", "f"),
                     ("output.kernel", "w2", "f d"), ("output.bias", "b2", "d")),
    "embedding": (("table", "table", "v d"),),
    "multi_head_attention": (("query.kernel", "wq", "d h k"), ("key.kernel", "wk", "d g k"),
                             ("value.kernel", "wv", "d g e"), ("output.kernel", "wo", "h e d"),
                             ("query.bias", "bq", "h k"), ("key.bias", "bk", "g k"),
                             ("value.bias", "bv", "g e"), ("output.bias", "bo", "d")),
    "encoder_layer": (("self_attention", "attn"), ("self_attention_norm", "norm1"), ("feed_forward", "mlp"),
                      ("feed_forward_norm", "norm2")),
    "decoder_layer": (("self_attention", "attn"), ("self_attention_norm", "norm1"), ("cross_attention", "xattn"),
                      ("cross_attention_norm", "norm2"), ("feed_forward", "mlp"), ("feed_forward_norm", "norm3")),
    "logits": (("kernel", "w", "d v"), ("bias", "b", "v")),
    "transformer": (("source_embedding", "src"), ("target_embedding", "tgt"), ("logits", "head")),
}
attention_call = {"mask": "mask_bhts", "bias": "bias_bhts", "causal": "causal", "return_weights": "return_weights"}
decoder_call = {"x": "x_btd", "memory": "memory_bsd", "self_mask": "self_mask_bhts", "cross_mask": "cross_mask_bhts"}
call = {
    "layer_norm": {"x": "x_btd"}, "feed_forward": {"x": "x_btd"}, "logits": {"x": "x_btd"},
    "embedding": {"token": "token"}, "positional_encoding": {"position": "position_bt"},
    "softmax": {"logits": "logits", "allowed": "mask"},
    "scaled_dot_product_attention": {"q": "query_bthk", "k": "key_bsgk", "v": "value_bsge", **attention_call},
    "multi_head_attention": {"x": "query_btd", "memory": "memory_bsd", **attention_call},
    "encoder_layer": {"x": "x_btd", "mask": "mask_bhts"}, "encoder": {"x": "x_bsd", "mask": "mask_bhts"},
    "decoder_layer": decoder_call, "decoder": decoder_call,
    "transformer": {"source": "source", "target": "target", "source_mask": "source_mask_bs",
                    "target_mask": "target_mask_bt"},
}
