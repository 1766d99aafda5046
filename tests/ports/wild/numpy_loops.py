"""The Transformer of "Attention Is All You Need" in nothing but NumPy. I wrote it to see every reshape with my own eyes."""
import math

import numpy as np

from rosettaformer.ports import CLASSIC, NotCovered

config = CLASSIC | {"encoder_layers": 2, "positions": "sinusoidal", "segments": 0, "embedding_norm": False, "pooler": False}
dtypes = ("float64", "float32")


def pick(params, prefix):
    """The parameters below `prefix`, without the prefix."""
    prefix = prefix + "."
    return {name[len(prefix):]: value for name, value in params.items() if name.startswith(prefix)}


def softmax_with_mask(scores, allowed):
    """Softmax over the last axis; rows in which nothing is allowed come out as zeros."""
    if allowed is None:
        allowed = np.ones((1,) * scores.ndim, dtype=bool)
    allowed = np.broadcast_to(allowed, scores.shape)
    if scores.shape[-1] == 0:
        return scores
    scores = np.where(allowed, scores, -np.inf)
    biggest = scores.max(axis=-1, keepdims=True)
    biggest = np.where(np.isfinite(biggest), biggest, 0)
    e = np.where(allowed, np.exp(scores - biggest), 0)
    total = e.sum(axis=-1, keepdims=True)
    return (e / np.where(total == 0, 1, total)).astype(scores.dtype)


def normalise(x, gamma, beta, eps):
    mu = x.mean(axis=-1, keepdims=True)
    centred = x - mu
    var = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(var + eps) * gamma + beta


def activate(x, name):
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu_erf":
        return (0.5 * x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2)))).astype(x.dtype)
    if name == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + np.tanh(inner))
    if name == "gelu_sigmoid":
        return x / (1 + np.exp(-1.702 * x))
    raise NotCovered(name)


def sinusoids(pos, width, dtype):
    """pos: (batch, length) -> (batch, length, width)"""
    table = np.zeros(pos.shape + (width,))
    for i in range(0, width, 2):
        angle = pos / 10000 ** (i / width)
        table[..., i] = np.sin(angle)
        if i + 1 < width:
            table[..., i + 1] = np.cos(angle)
    return table.astype(dtype)


def attend(Q, K, V, allowed, causal, bias=None):
    """Q (b, h, t, k), K (b, g, s, k), V (b, g, s, e) -> (b, h, t, e) and the weights (b, h, t, s)"""
    groups = Q.shape[1] // K.shape[1]          # query heads that share one key head
    K = np.repeat(K, groups, axis=1)
    V = np.repeat(V, groups, axis=1)
    T, S = Q.shape[2], K.shape[2]
    scores = Q @ K.transpose(0, 1, 3, 2) / math.sqrt(Q.shape[-1])
    if bias is not None:
        scores = scores + bias
    if causal:
        triangle = np.tril(np.ones((T, S), dtype=bool), k=S - T)
        allowed = triangle if allowed is None else allowed & triangle
    weights = softmax_with_mask(scores, allowed)
    return weights @ V, weights


def project(x, kernel, bias):
    """x (b, n, d) through a kernel (d, heads, size) -> (b, heads, n, size)"""
    b, n, d = x.shape
    heads, size = kernel.shape[1], kernel.shape[2]
    flat = x.reshape(b * n, d) @ kernel.reshape(d, heads * size)
    if bias is not None:
        flat = flat + bias.reshape(heads * size)
    return flat.reshape(b, n, heads, size).transpose(0, 2, 1, 3)


def mha(p, query, memory, allowed, causal=False, bias=None, return_weights=False):
    Q = project(query, p["query.kernel"], p.get("query.bias"))
    K = project(memory, p["key.kernel"], p.get("key.bias"))
    V = project(memory, p["value.kernel"], p.get("value.bias"))
    context, weights = attend(Q, K, V, allowed, causal, bias)
    b, h, t, e = context.shape
    context = context.transpose(0, 2, 1, 3).reshape(b, t, h * e)
    out = context @ p["output.kernel"].reshape(h * e, -1)
    if "output.bias" in p:
        out = out + p["output.bias"]
    return (out, weights) if return_weights else out


def ffn(p, x, activation):
    hidden = activate(x @ p["hidden.kernel"] + p["hidden.bias"], activation)
    return hidden @ p["output.kernel"] + p["output.bias"]


def norm_of(p, name, x, c):
    return normalise(x, p[name + ".scale"], p[name + ".offset"], c.epsilon)


def encoder_block(p, x, allowed, c):
    if c.norm_placement == "pre":
        h = norm_of(p, "self_attention_norm", x, c)
        x = x + mha(pick(p, "self_attention"), h, h, allowed)
        h = norm_of(p, "feed_forward_norm", x, c)
        x = x + ffn(pick(p, "feed_forward"), h, c.activation)
        return x
    a = mha(pick(p, "self_attention"), x, x, allowed)
    x = norm_of(p, "self_attention_norm", x + a, c)
    f = ffn(pick(p, "feed_forward"), x, c.activation)
    return norm_of(p, "feed_forward_norm", x + f, c)


def decoder_block(p, x, memory, self_allowed, cross_allowed, c):
    if c.norm_placement == "pre":
        h = norm_of(p, "self_attention_norm", x, c)
        x = x + mha(pick(p, "self_attention"), h, h, self_allowed, causal=True)
        h = norm_of(p, "cross_attention_norm", x, c)
        x = x + mha(pick(p, "cross_attention"), h, memory, cross_allowed)
        h = norm_of(p, "feed_forward_norm", x, c)
        x = x + ffn(pick(p, "feed_forward"), h, c.activation)
        return x
    a = mha(pick(p, "self_attention"), x, x, self_allowed, causal=True)
    x = norm_of(p, "self_attention_norm", x + a, c)
    a = mha(pick(p, "cross_attention"), x, memory, cross_allowed)
    x = norm_of(p, "cross_attention_norm", x + a, c)
    f = ffn(pick(p, "feed_forward"), x, c.activation)
    return norm_of(p, "feed_forward_norm", x + f, c)


def run_encoder(p, x, allowed, c):
    for n in range(c.encoder_layers):
        x = encoder_block(pick(p, f"layers.{n}"), x, allowed, c)
    if c.final_norm:
        x = norm_of(p, "final_norm", x, c)
    return x


def run_decoder(p, x, memory, self_allowed, cross_allowed, c):
    for n in range(c.decoder_layers):
        x = decoder_block(pick(p, f"layers.{n}"), x, memory, self_allowed, cross_allowed, c)
    if c.final_norm:
        x = norm_of(p, "final_norm", x, c)
    return x


def embed(table, ids, c):
    if ids.dtype.kind == "f":
        raise NotCovered("ids only")
    x = table[ids]
    return x * math.sqrt(table.shape[1]) if c.scale_embedding else x


def positions_of(real, c):
    batch, length = real.shape
    pos = np.tile(np.arange(length), (batch, 1))
    if c.position_start == "first_token":
        for row in range(batch):
            pads = 0
            while pads < length and not real[row, pads]:
                pads += 1
            pos[row] = np.maximum(pos[row] - pads, 0)
    return pos + c.position_offset


def embed_with_positions(table, ids, real, c):
    x = embed(table, ids, c)
    return x + sinusoids(positions_of(real, c), table.shape[1], table.dtype)


def full_model(p, c, src, tgt, src_real=None, tgt_real=None):
    if src.dtype.kind == "f" or tgt.dtype.kind == "f":
        raise NotCovered("ids only")
    src_real = src != c.padding_id if src_real is None else src_real
    tgt_real = tgt != c.padding_id if tgt_real is None else tgt_real
    src_allowed = src_real[:, None, None, :]
    tgt_allowed = tgt_real[:, None, None, :]

    tgt_table = p.get("target_embedding.table", p.get("source_embedding.table"))
    src_table = p.get("source_embedding.table", tgt_table)

    x = embed_with_positions(src_table, src, src_real, c)
    memory = run_encoder(pick(p, "encoder"), x, src_allowed, c)
    y = embed_with_positions(tgt_table, tgt, tgt_real, c)
    y = run_decoder(pick(p, "decoder"), y, memory, tgt_allowed, src_allowed, c)

    kernel = tgt_table.T if c.tie_logits else p["logits.kernel"]
    out = y @ kernel
    if c.output_bias:
        out = out + p["logits.bias"]
    return out


def given(case, name):
    return case.inputs.get(name)


def without(case, *names):
    for name in names:
        if given(case, name) is not None:
            raise NotCovered(name)


def layer_norm(case):
    p = case.parameters
    return normalise(case.inputs["x_btd"], p["scale"], p["offset"], case.config.epsilon)


def softmax(case):
    return softmax_with_mask(case.inputs["logits"], given(case, "mask"))


def embedding(case):
    return embed(case.parameters["table"], case.inputs["token"], case.config)


def positional_encoding(case):
    return sinusoids(case.inputs["position_bt"], case.config.model_width, case.dtype)


def feed_forward(case):
    without(case, "keep_btf")
    return ffn(case.parameters, case.inputs["x_btd"], case.config.activation)


def multi_head_attention(case):
    without(case, "keep_bhts")
    return mha(case.parameters, case.inputs["query_btd"], case.inputs["memory_bsd"], given(case, "mask_bhts"),
               bool(given(case, "causal")), given(case, "bias_bhts"), given(case, "return_weights"))


def scaled_dot_product_attention(case):
    without(case, "keep_bhts", "scale", "cap", "window")
    Q, K, V = (case.inputs[name].transpose(0, 2, 1, 3) for name in ("query_bthk", "key_bsgk", "value_bsge"))
    out, weights = attend(Q, K, V, given(case, "mask_bhts"), bool(given(case, "causal")), given(case, "bias_bhts"))
    out = out.transpose(0, 2, 1, 3)
    return (out, weights) if given(case, "return_weights") else out


def logits(case):
    out = case.inputs["x_btd"] @ case.parameters["kernel"]
    return out + case.parameters["bias"] if "bias" in case.parameters else out


def encoder_layer(case):
    without(case, "keep")
    return encoder_block(case.parameters, case.inputs["x_btd"], given(case, "mask_bhts"), case.config)


def decoder_layer(case):
    without(case, "keep")
    return decoder_block(case.parameters, case.inputs["x_btd"], case.inputs["memory_bsd"],
                         given(case, "self_mask_bhts"), given(case, "cross_mask_bhts"), case.config)


def encoder(case):
    without(case, "keep")
    return run_encoder(case.parameters, case.inputs["x_bsd"], given(case, "mask_bhts"), case.config)


def decoder(case):
    without(case, "keep")
    return run_decoder(case.parameters, case.inputs["x_btd"], case.inputs["memory_bsd"],
                       given(case, "self_mask_bhts"), given(case, "cross_mask_bhts"), case.config)


def transformer(case):
    without(case, "keep")
    i = case.inputs
    return full_model(case.parameters, case.config, i["source"], i["target"], i.get("source_mask_bs"),
                      i.get("target_mask_bt"))
