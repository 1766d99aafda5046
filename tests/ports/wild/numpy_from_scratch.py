"""The Transformer of "Attention Is All You Need" in nothing but NumPy.

Forward pass only, written to be read: a for loop over the heads, one einsum per
formula, parameters in a flat dict. Shapes: B batch, T queries, S keys, D model.
"""

import math

import numpy as np

from rosettaformer.ports import CLASSIC

_erf = np.vectorize(math.erf, otypes=[np.float64])


def subset(params, prefix):
    """The parameters below a prefix, with the prefix cut off."""
    prefix = prefix + "."
    return {k[len(prefix) :]: v for k, v in params.items() if k.startswith(prefix)}


# ------------------------------------------------------------ building blocks


def stable_softmax(scores, mask=None):
    if mask is not None:
        mask = np.broadcast_to(mask, scores.shape)
        scores = np.where(mask, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(scores - top)
    total = np.sum(e, axis=-1, keepdims=True)
    total = np.where(total == 0, 1, total)
    return e / total


def normalize(x, params, eps):
    mean = np.mean(x, axis=-1, keepdims=True)
    centered = x - mean
    var = np.mean(centered**2, axis=-1, keepdims=True)
    normed = centered / np.sqrt(var + eps)
    return normed * params["scale"] + params["offset"]


def act(x, name):
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu_erf":
        return (0.5 * x * (1 + _erf(x / math.sqrt(2)))).astype(x.dtype)
    if name == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + np.tanh(inner))
    if name == "gelu_sigmoid":
        return x / (1 + np.exp(-1.702 * x))
    raise ValueError(name)


def ffn(x, params, activation):
    hidden = np.einsum("btd,df->btf", x, params["hidden.kernel"])
    hidden = act(hidden + params["hidden.bias"], activation)
    out = np.einsum("btf,fd->btd", hidden, params["output.kernel"])
    return out + params["output.bias"]


def embed(ids, table, scale):
    out = table[ids]
    if scale:
        out = out * math.sqrt(table.shape[1])
    return out


def sinusoid(positions, width, dtype):
    pe = np.zeros(positions.shape + (width,))
    for i in range(0, width, 2):
        angle = positions / 10000 ** (i / width)
        pe[..., i] = np.sin(angle)
        if i + 1 < width:
            pe[..., i + 1] = np.cos(angle)
    return pe.astype(dtype)


# ------------------------------------------------------------------ attention


def look_ahead_mask(t, s):
    """True where a query may look; the last query is at the last key."""
    return np.tril(np.ones((t, s), dtype=bool), k=s - t)


def attend(q, k, v, mask=None, bias=None):
    """One head: q (B,T,K), k (B,S,K), v (B,S,E) -> (B,T,E), (B,T,S)."""
    scores = np.einsum("btk,bsk->bts", q, k) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    p = stable_softmax(scores, mask)
    return np.einsum("bts,bse->bte", p, v), p


def full_mask(mask, causal, b, h, t, s):
    if mask is None and not causal:
        return None
    full = np.ones((b, h, t, s), dtype=bool)
    if mask is not None:
        full = full & mask
    if causal:
        full = full & look_ahead_mask(t, s)
    return full


def project(x, params, name, head):
    y = np.einsum("btd,dk->btk", x, params[name + ".kernel"][:, head])
    if name + ".bias" in params:
        y = y + params[name + ".bias"][head]
    return y


def mha(x, memory, params, mask=None, bias=None, causal=False):
    heads = params["query.kernel"].shape[1]
    kv_heads = params["key.kernel"].shape[1]
    b, t = x.shape[:2]
    s = memory.shape[1]
    mask = full_mask(mask, causal, b, heads, t, s)
    if bias is not None:
        bias = np.broadcast_to(bias, (b, heads, t, s))

    out = 0
    weights = []
    for head in range(heads):
        group = head // (heads // kv_heads)  # grouped-query attention
        q = project(x, params, "query", head)
        k = project(memory, params, "key", group)
        v = project(memory, params, "value", group)
        z, p = attend(
            q,
            k,
            v,
            None if mask is None else mask[:, head],
            None if bias is None else bias[:, head],
        )
        out = out + np.einsum("bte,ed->btd", z, params["output.kernel"][head])
        weights.append(p)
    if "output.bias" in params:
        out = out + params["output.bias"]
    return out, np.stack(weights, axis=1)


# --------------------------------------------------------------------- layers


def run_encoder_layer(x, mask, params, config):
    attn_p = subset(params, "self_attention")
    norm1 = subset(params, "self_attention_norm")
    ffn_p = subset(params, "feed_forward")
    norm2 = subset(params, "feed_forward_norm")
    eps = config.epsilon

    if config.norm_placement == "pre":
        h = normalize(x, norm1, eps)
        x = x + mha(h, h, attn_p, mask)[0]
        h = normalize(x, norm2, eps)
        return x + ffn(h, ffn_p, config.activation)

    x = normalize(x + mha(x, x, attn_p, mask)[0], norm1, eps)
    return normalize(x + ffn(x, ffn_p, config.activation), norm2, eps)


def run_decoder_layer(x, memory, self_mask, cross_mask, params, config):
    self_p = subset(params, "self_attention")
    norm1 = subset(params, "self_attention_norm")
    cross_p = subset(params, "cross_attention")
    norm2 = subset(params, "cross_attention_norm")
    ffn_p = subset(params, "feed_forward")
    norm3 = subset(params, "feed_forward_norm")
    eps = config.epsilon

    if config.norm_placement == "pre":
        h = normalize(x, norm1, eps)
        x = x + mha(h, h, self_p, self_mask, causal=True)[0]
        if memory is not None:
            h = normalize(x, norm2, eps)
            x = x + mha(h, memory, cross_p, cross_mask)[0]
        h = normalize(x, norm3, eps)
        return x + ffn(h, ffn_p, config.activation)

    x = normalize(x + mha(x, x, self_p, self_mask, causal=True)[0], norm1, eps)
    if memory is not None:
        x = normalize(x + mha(x, memory, cross_p, cross_mask)[0], norm2, eps)
    return normalize(x + ffn(x, ffn_p, config.activation), norm3, eps)


def encoder_stack(x, mask, params, config):
    for n in range(config.encoder_layers):
        x = run_encoder_layer(x, mask, subset(params, f"layers.{n}"), config)
    if config.final_norm:
        x = normalize(x, subset(params, "final_norm"), config.epsilon)
    return x


def decoder_stack(x, memory, self_mask, cross_mask, params, config):
    for n in range(config.decoder_layers):
        layer = subset(params, f"layers.{n}")
        x = run_decoder_layer(x, memory, self_mask, cross_mask, layer, config)
    if config.final_norm:
        x = normalize(x, subset(params, "final_norm"), config.epsilon)
    return x


# ----------------------------------------------------------------- the model


def positions_of(keep, config):
    b, t = keep.shape
    rows = np.broadcast_to(np.arange(t), (b, t))
    if config.position_start == "first_token":
        first = np.where(keep.any(axis=1), np.argmax(keep, axis=1), t)
        rows = np.maximum(rows - first[:, None], 0)
    return rows + config.position_offset


def embed_tokens(ids, keep, table, config):
    x = embed(ids, table, config.scale_embedding)
    positions = positions_of(keep, config)
    return x + sinusoid(positions, config.model_width, x.dtype)


def run_transformer(source, target, params, config, source_keep=None, target_keep=None):
    if source_keep is None:
        source_keep = source != config.padding_id
    if target_keep is None:
        target_keep = target != config.padding_id

    source_table = params["source_embedding.table"]
    target_table = params.get("target_embedding.table", source_table)

    # (B, S) -> (B, 1, 1, S): the same keys are hidden from every head and query
    source_mask = source_keep[:, None, None, :]
    target_mask = target_keep[:, None, None, :]

    x = embed_tokens(source, source_keep, source_table, config)
    memory = encoder_stack(x, source_mask, subset(params, "encoder"), config)

    y = embed_tokens(target, target_keep, target_table, config)
    y = decoder_stack(y, memory, target_mask, source_mask, subset(params, "decoder"), config)

    if config.tie_logits:
        scores = np.einsum("btd,vd->btv", y, target_table)
    else:
        scores = np.einsum("btd,dv->btv", y, params["logits.kernel"])
    if "logits.bias" in params:
        scores = scores + params["logits.bias"]
    return scores


# ---------------------------------------------------------------------------
# port declarations

dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "positions": "sinusoidal", "max_positions": 0,
    "segments": 0, "embedding_norm": False, "pooler": False, "classes": 0,
    "masked_language_head": False}


def _take(case, *names):
    """The case's inputs in this order; what we do not know is not covered."""
    from rosettaformer.ports import NotCovered

    for name, value in case.inputs.items():
        if name not in names and value is not None:
            raise NotCovered(f"takes no {name}")
    return [case.inputs.get(name) for name in names]


def layer_norm(case):
    (x,) = _take(case, "x_btd")
    return normalize(x, case.parameters, case.config.epsilon)


def feed_forward(case):
    (x,) = _take(case, "x_btd")
    return ffn(x, case.parameters, case.config.activation)


def embedding(case):
    from rosettaformer.ports import NotCovered

    (token,) = _take(case, "token")
    if np.issubdtype(token.dtype, np.floating):
        raise NotCovered("rows of floats")
    return embed(token, case.parameters["table"], case.config.scale_embedding)


def softmax(case):
    logits, mask = _take(case, "logits", "mask")
    return stable_softmax(logits, mask)


def scaled_dot_product_attention(case):
    q, k, v, mask, bias, causal, return_weights = _take(
        case, "query_bthk", "key_bsgk", "value_bsge", "mask_bhts", "bias_bhts", "causal",
        "return_weights",
    )  # fmt: skip
    b, t, heads, _ = q.shape
    s, groups = k.shape[1:3]
    mask = full_mask(mask, bool(causal), b, heads, t, s)
    if bias is not None:
        bias = np.broadcast_to(bias, (b, heads, t, s))
    outs, weights = [], []
    for h in range(heads):
        g = h // (heads // groups)
        m = None if mask is None else mask[:, h]
        z, p = attend(q[:, :, h], k[:, :, g], v[:, :, g], m, None if bias is None else bias[:, h])
        outs.append(z)
        weights.append(p)
    out = np.stack(outs, axis=2)
    return (out, np.stack(weights, axis=1)) if return_weights else out


def multi_head_attention(case):
    x, memory, mask, bias, causal, return_weights = _take(
        case, "query_btd", "memory_bsd", "mask_bhts", "bias_bhts", "causal", "return_weights"
    )
    out, weights = mha(x, memory, case.parameters, mask, bias, bool(causal))
    return (out, weights) if return_weights else out


def encoder_layer(case):
    x, mask = _take(case, "x_btd", "mask_bhts")
    return run_encoder_layer(x, mask, case.parameters, case.config)


def decoder_layer(case):
    x, memory, self_mask, cross_mask = _take(
        case, "x_btd", "memory_bsd", "self_mask_bhts", "cross_mask_bhts"
    )
    return run_decoder_layer(x, memory, self_mask, cross_mask, case.parameters, case.config)


def encoder(case):
    x, mask = _take(case, "x_bsd", "mask_bhts")
    return encoder_stack(x, mask, case.parameters, case.config)


def decoder(case):
    x, memory, self_mask, cross_mask = _take(
        case, "x_btd", "memory_bsd", "self_mask_bhts", "cross_mask_bhts"
    )
    return decoder_stack(x, memory, self_mask, cross_mask, case.parameters, case.config)


def positional_encoding(case):
    (position,) = _take(case, "position_bt")
    # integers carry no dtype: the dtype of the case, if it has one
    dtype = getattr(case, "dtype", np.float64)
    return sinusoid(position, case.config.model_width, dtype)


def logits(case):
    (x,) = _take(case, "x_btd")
    out = np.einsum("btd,dv->btv", x, case.parameters["kernel"])
    return out + case.parameters["bias"] if "bias" in case.parameters else out


def transformer(case):
    from rosettaformer.ports import NotCovered

    source, target, source_keep, target_keep = _take(
        case, "source", "target", "source_mask_bs", "target_mask_bt"
    )
    if np.issubdtype(source.dtype, np.floating) or np.issubdtype(target.dtype, np.floating):
        raise NotCovered("rows of floats")
    return run_transformer(source, target, case.parameters, case.config, source_keep, target_keep)
