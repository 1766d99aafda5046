"""Scaled dot-product attention and multi-head attention.

Attention maps a query and a set of keys and values to a weighted sum of the values; each weight is
computed from the query and the corresponding key. The page follows section 3.2 of Vaswani et al.
2017. Each later idea has its own function: floating masks, windows and caps, grouped key/value
heads, query/key norms and rotary positions. The backward passes come last.
"""

import numpy as np

from . import arithmetic, checks, dropout, mask, normalization, rotary, softmax
from .arrays import Array, Gradients, Mask, Tree
from .config import TransformerConfig as Config
from .rotary import Rotation
from .scores import Scores
from .values import Attending, Drop, Heads

__all__ = [
    "attention_weights",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
]


def attention_weights(
    query_bthk: Array,
    key_bsgk: Array,
    mask_bhts: Mask = None,
    scores: Scores = Scores(),
    sink_h: Array | None = None,
) -> Array:
    """`softmax(query key^T / sqrt(k))`: how much each query attends to each key, `b h t s`.

    Every query is multiplied with every key; the scores are scaled, capped and masked, and a
    softmax over the keys turns them into weights that add up to 1. mask_bhts: boolean, True = may
    attend (MASK), or floating, added to the scores, where -inf hides a key; axes of size 1
    broadcast. scores: scale, cap, window and causality. sink_h: see `beside_sink`. Fully masked
    queries have zero weights (EMPTY). Half-precision dtypes keep scores and softmax in float32 and
    round the weights. Raises ValueError if the shapes do not match. Source: Vaswani et al. 2017,
    eq. 1.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, key_bsgk.shape)
    scores_bhts = scaled_scores(query_bthk, key_bsgk, scores)
    if scores.cap is not None:
        scores_bhts = softmax.soft_cap(scores_bhts, scores.cap)
    scores_bhts, mask_bhts = masked(scores_bhts, mask_bhts, scores)
    weights_bhts = softmax.softmax(*beside_sink(scores_bhts, mask_bhts, sink_h))
    weights_bhts = weights_bhts[..., : scores_bhts.shape[3]]
    return weights_bhts.astype(query_bthk.dtype, copy=False)


def scaled_dot_product_attention(
    heads: Heads, mask_bhts: Mask = None, scores: Scores = Scores(), drop: Drop = Drop()
) -> Array:
    """`attention_weights(query, key) value`: the weighted mean of the values, `b t h e`.

    mask_bhts, scores: as `attention_weights`. drop: dropout of the weights, after the softmax.
    Fully masked queries return zeros (EMPTY). Raises ValueError if the shapes do not match.
    Source: Vaswani et al. 2017, eq. 1.
    """
    query_bthk, key_bsgk, value_bsge, sink_h = heads
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    weights_bhts = attention_weights(query_bthk, key_bsgk, mask_bhts, scores, sink_h)
    dropped_bhts = dropout.dropout(weights_bhts, drop.keep_bhts, drop.rate)
    value_bshe = repeat_kv(value_bsge, query_bthk.shape[2])
    return arithmetic.einsum("bhts,bshe->bthe", dropped_bhts, value_bshe)


def scaled_scores(query_bthk: Array, key_bsgk: Array, scores: Scores = Scores()) -> Array:
    """`query key^T / sqrt(k)`, or times `score_scale` (SCALE): `b h t s`, at least float32.

    The scale keeps the variance of the scores independent of k; large scores saturate the softmax.
    """
    wide_query_bthk = arithmetic.upcast_half(query_bthk)
    factor = wide_query_bthk.dtype.type(scores.factor(query_bthk.shape[3]))
    key_bshk = arithmetic.upcast_half(repeat_kv(key_bsgk, query_bthk.shape[2]))
    return arithmetic.einsum("bthk,bshk->bhts", wide_query_bthk * factor, key_bshk)


def masked(
    scores_bhts: Array, mask_bhts: Mask, scores: Scores = Scores()
) -> tuple[Array, Array | None]:
    """Adds a floating mask to the scores; merges CAUSAL and WINDOW into a boolean mask."""
    if mask_bhts is not None:
        checks.check_attention_mask(mask_bhts.shape, str(mask_bhts.dtype), scores_bhts.shape)
        if mask_bhts.dtype != bool:
            scores_bhts, mask_bhts = scores_bhts + arithmetic.upcast_half(mask_bhts), None
    target, source = scores_bhts.shape[2:]
    if scores.causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, source))
    if scores.window:
        window_bhts = mask.window_mask(target, source, scores.window)
        mask_bhts = mask.combine_masks(mask_bhts, window_bhts)
    return scores_bhts, mask_bhts


def beside_sink(
    scores_bhts: Array, mask_bhts: Mask, sink_h: Array | None
) -> tuple[Array, Array | None]:
    """`[scores, sink]`, `b h t s+1`: appends the score of each head's sink, which is never masked
    (SINK).

    A sink is a learned score without a value: it takes a share of the softmax, so that a head can
    attend to nothing. Without sinks, returns scores and mask. Source: OpenAI 2025, gpt-oss,
    section 2.
    """
    if sink_h is None:
        return scores_bhts, mask_bhts
    checks.check_sink(sink_h.shape, scores_bhts.shape[1])
    (*outer, _), dtype = scores_bhts.shape, scores_bhts.dtype
    sink_bht1 = np.broadcast_to(sink_h.astype(dtype)[:, None, None], (*outer, 1))
    if mask_bhts is not None:
        mask_bhts = np.broadcast_to(mask_bhts, scores_bhts.shape)
        mask_bhts = np.concatenate([mask_bhts, np.ones((*outer, 1), bool)], axis=-1)
    return np.concatenate([scores_bhts, sink_bht1], axis=-1), mask_bhts


def repeat_kv(x_bsgk: Array, heads: int) -> Array:
    """Repeats each key or value head for the query heads that share it: `b s h k`.

    With grouped heads, key head j serves the `h/g` consecutive query heads from `j h/g` on, which
    makes a cache h/g times smaller. Source: Ainslie et al. 2023.
    """
    groups = x_bsgk.shape[2]
    return np.repeat(x_bsgk, heads // groups, axis=2) if groups != heads else x_bsgk


def clipped(x_bthk: Array, limit: float | None) -> Array:
    """`min(max(x, -limit), limit)` for queries, keys and values; None clips nothing (CLIP).

    Source: MosaicML 2023, MPT, published code; after the norm: Muennighoff et al. 2024, OLMoE.
    """
    if limit is None:
        return x_bthk
    bound = x_bthk.dtype.type(limit)
    return np.maximum(np.minimum(x_bthk, bound), -bound)


def multi_head_attention(
    parameters: Tree,
    config: Config,
    query_btd: Array,
    memory_bsd: Array,
    attending: Attending = Attending(),
    keep_bhts: Mask = None,
) -> Array:
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`,
    `output = sum_i head_i W_i^O + b^O`: `b t d`.

    Each head attends in a learned projection of its own, so that heads can look at different
    positions and features. query_btd: x, the tokens that attend. memory_bsd: m, the tokens attended
    to; x itself in self-attention. parameters: query.kernel `d h k`, key.kernel `d g k`,
    value.kernel `d g e`, output.kernel `h e d`; biases `h k`, `g k`, `g e`, `d` and sink `h` if
    present; query_norm and key_norm if the config sets query_key_norm. attending: mask, scores and
    rotation. keep_bhts: dropout mask of the weights; the rate is the config's. Raises ValueError if
    the shapes do not match. Source: Vaswani et al. 2017, section 3.2.2.
    """
    mask_bhts, scores, rotation = attending
    heads = project(parameters, config, query_btd, memory_bsd, rotation)
    return attend(parameters, config, heads, mask_bhts, scores, keep_bhts)


def project(
    parameters: Tree,
    config: Config,
    query_btd: Array,
    memory_bsd: Array,
    rotation: Rotation | None = None,
) -> Heads:
    """Projects x to queries, and m to keys and values; normalizes and rotates queries and keys."""
    if rotation is not None:
        checks.check_same_length(query=query_btd.shape, memory=memory_bsd.shape)
    query_bthk = queries(parameters, config, query_btd, rotation)
    key_bsgk, value_bsge = keys_and_values(parameters, config, memory_bsd, rotation)
    return Heads(query_bthk, key_bsgk, value_bsge, parameters.get("sink"))


def queries(
    parameters: Tree, config: Config, query_btd: Array, rotation: Rotation | None = None
) -> Array:
    """`x W^Q + b^Q`, normalized and rotated: `b t h k`."""
    checks.check_features("query", query_btd.shape, parameters["query"]["kernel"].shape[0])
    query_bthk = projection("btd,dhk->bthk", parameters["query"], query_btd)
    return placed(parameters, config, "query", query_bthk, rotation)


def keys_and_values(
    parameters: Tree, config: Config, memory_bsd: Array, rotation: Rotation | None = None
) -> tuple[Array, Array]:
    """`m W^K + b^K`, normalized and rotated, and `m W^V + b^V`: `b s g k` and `b s g e`."""
    checks.check_features("memory", memory_bsd.shape, parameters["key"]["kernel"].shape[0])
    key_bsgk = projection("bsd,dgk->bsgk", parameters["key"], memory_bsd)
    value_bsge = projection("bsd,dge->bsge", parameters["value"], memory_bsd)
    value_bsge = clipped(value_bsge, config.query_key_value_clip)
    return placed(parameters, config, "key", key_bsgk, rotation), value_bsge


def placed(
    parameters: Tree, config: Config, name: str, x_bthk: Array, rotation: Rotation | None
) -> Array:
    """`R clip(norm(x))`, or `norm(R clip(x))` if the config says so; name: "query" or "key".

    Source of the second order: Tencent 2025, Hunyuan, published code.
    """
    limit = config.query_key_value_clip
    if config.query_key_norm_after_rotation:
        turned_bthk = rotated(config, clipped(x_bthk, limit), rotation)
        return query_key_norm(parameters, config, name, turned_bthk)
    normed_bthk = query_key_norm(parameters, config, name, x_bthk)
    return rotated(config, clipped(normed_bthk, limit), rotation)


def query_key_norm(parameters: Tree, config: Config, name: str, x_bthk: Array) -> Array:
    """`norm(x)` over the features of each head, or of all heads together (QKNORM).

    Normalizing queries and keys bounds the scores. name: "query" or "key".
    parameters: query_norm.scale, `k` per head or `h k` for each head or over the width, and
    key_norm. Source: Henry et al. 2020; before the rotation: Yang et al. 2025, Qwen 3; a scale for
    each head: Cohere 2024, Command R+, published code.
    """
    if config.query_key_norm == "none":
        return x_bthk
    rows_btd = x_bthk.reshape(_rows(config, x_bthk))
    normed_btd = normalization.norm(parameters.get(f"{name}_norm", {}), config, rows_btd)
    return normed_btd.reshape(x_bthk.shape)


def _rows(config: Config, x_bthk: Array) -> tuple[int, ...]:
    """Returns the shape with features that are normalized together on the last axis."""
    batch, length, heads, size = x_bthk.shape
    if config.query_key_norm == "each_head":
        return x_bthk.shape
    by_head = config.query_key_norm == "head"
    return (batch, length * heads, size) if by_head else (batch, length, heads * size)


def rotated(config: Config, x_bthk: Array, rotation: Rotation | None) -> Array:
    """Rotates queries or keys if there is a rotation (ROTARY).

    Scores of rotated queries and keys depend only on the distance between the two tokens.
    """
    return x_bthk if rotation is None else rotary.rotated(x_bthk, rotation, config.rotary_layout)


def attend(
    parameters: Tree,
    config: Config,
    heads: Heads,
    mask_bhts: Mask = None,
    scores: Scores = Scores(),
    keep_bhts: Mask = None,
) -> Array:
    """`sum_i attention(head_i) W_i^O + b^O`: `b t d`."""
    drop = Drop(keep_bhts, config.attention_dropout_rate)
    output_bthe = scaled_dot_product_attention(heads, mask_bhts, scores, drop)
    return projection("bthe,hed->btd", parameters["output"], output_bthe)


def projection(subscripts: str, parameters: Tree, x: Array) -> Array:
    """`x W + b`: one of the four projections, selected by its subscripts."""
    return arithmetic.affine(subscripts, x, parameters)


def scaled_dot_product_attention_vjp(
    heads: Heads,
    mask_bhts: Mask = None,
    scores: Scores = Scores(),
    drop: Drop = Drop(),
    *,
    cotangent: Array,
) -> Gradients:
    """`dV = D(P)^T g`, `dP = D(g V^T)`, `dS = P (dP - sum_s P dP)`, `dQ = dS K / sqrt(k)`,
    `dK = dS^T Q / sqrt(k)`; P are the weights, D is dropout; a cap multiplies dS by its slope.

    Returns query_bthk, key_bsgk, value_bsge, sink_h if there is a sink, and mask_bhts if it is
    floating. Fully masked queries pass zero gradient (EMPTY). Shared key and value heads get the
    sum over their query heads. Half-precision dtypes keep dS in float32. Source: Dao et al. 2022,
    section 3.1.
    """
    query_bthk, key_bsgk, value_bsge, sink_h = heads
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    (_, _, count, size), dtype = query_bthk.shape, query_bthk.dtype
    raw_bhts = scaled_scores(query_bthk, key_bsgk, scores)
    capped_bhts = raw_bhts if scores.cap is None else softmax.soft_cap(raw_bhts, scores.cap)
    joined_bhts, visible_bhts = beside_sink(*masked(capped_bhts, mask_bhts, scores), sink_h)
    keys = slice(0, raw_bhts.shape[3])
    weights_bhts = softmax.softmax(joined_bhts, visible_bhts)[..., keys].astype(dtype, copy=False)
    dropped_bhts = dropout.dropout(weights_bhts, drop.keep_bhts, drop.rate)
    g_bhts = arithmetic.einsum("bthe,bshe->bhts", cotangent, repeat_kv(value_bsge, count))
    g_bhts = dropout.dropout_vjp(weights_bhts, drop.keep_bhts, drop.rate, cotangent=g_bhts)["x"]
    if sink_h is not None:  # the sink has no value
        g_bhts = np.concatenate([g_bhts, np.zeros_like(g_bhts[..., :1])], axis=-1)
    g_bhts = softmax.softmax_vjp(joined_bhts, visible_bhts, cotangent=g_bhts)["logits"]
    d_sink_bht1, g_bhts = g_bhts[..., keys.stop :], g_bhts[..., keys]
    d_mask_bhts = g_bhts
    if scores.cap is not None:
        g_bhts = softmax.soft_cap_vjp(raw_bhts, scores.cap, cotangent=g_bhts)["x"]
    factor = raw_bhts.dtype.type(scores.factor(size))
    key_bshk = arithmetic.upcast_half(repeat_kv(key_bsgk, count))
    d_query_bthk = arithmetic.einsum("bhts,bshk->bthk", g_bhts, key_bshk) * factor
    scaled_bthk = arithmetic.upcast_half(query_bthk) * factor
    d_key_bshk = arithmetic.einsum("bhts,bthk->bshk", g_bhts, scaled_bthk)
    d_value_bshe = arithmetic.einsum("bhts,bthe->bshe", dropped_bhts, cotangent)
    gradients = {
        "query_bthk": d_query_bthk.astype(dtype, copy=False),
        "key_bsgk": repeat_kv_vjp(d_key_bshk.astype(dtype), key_bsgk),
        "value_bsge": repeat_kv_vjp(d_value_bshe, value_bsge),
    }
    if sink_h is not None:
        d_sink_h = arithmetic.unbroadcast(d_sink_bht1, (len(sink_h), 1, 1))[:, 0, 0]
        gradients["sink_h"] = d_sink_h.astype(sink_h.dtype, copy=False)
    if mask_bhts is not None and mask_bhts.dtype != bool:
        d_mask_bhts = arithmetic.unbroadcast(d_mask_bhts, mask_bhts.shape)
        gradients["mask_bhts"] = d_mask_bhts.astype(mask_bhts.dtype, copy=False)
    return gradients


def repeat_kv_vjp(gradient_bshk: Array, key_bsgk: Array) -> Array:
    """The gradient of `repeat_kv`: the sum over the query heads that share a head."""
    batch, source, groups, size = key_bsgk.shape
    grouped = gradient_bshk.reshape(batch, source, groups, gradient_bshk.shape[2] // groups, size)
    return arithmetic.unbroadcast(grouped, (batch, source, groups, 1, size))[:, :, :, 0]


def multi_head_attention_vjp(
    parameters: Tree,
    config: Config,
    query_btd: Array,
    memory_bsd: Array,
    attending: Attending = Attending(),
    keep_bhts: Mask = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backward pass through output projection, attention, rotation, norms and input projections.

    Returns parameters, query_btd, memory_bsd, and mask_bhts if it is floating. In self-attention
    the gradient of x is query_btd + memory_bsd.
    """
    mask_bhts, scores, rotation = attending
    heads = project(parameters, config, query_btd, memory_bsd, rotation)
    drop = Drop(keep_bhts, config.attention_dropout_rate)
    output_bthe = scaled_dot_product_attention(heads, mask_bhts, scores, drop)
    own = parameters["output"]
    g_bthe, of_output = arithmetic.affine_vjp("bthe,hed->btd", output_bthe, own, cotangent)
    inner = scaled_dot_product_attention_vjp(heads, mask_bhts, scores, drop, cotangent=g_bthe)
    vectors, kernels, norms = dict[str, Array](), Gradients(), Gradients()
    for name, subscripts, x, g in (
        ("query", "btd,dhk->bthk", query_btd, inner["query_bthk"]),
        ("key", "bsd,dgk->bsgk", memory_bsd, inner["key_bsgk"]),
        ("value", "bsd,dge->bsge", memory_bsd, inner["value_bsge"]),
    ):
        raw = projection(subscripts, parameters[name], x)
        if name != "value":  # queries and keys are normalized and rotated
            g, norm = placed_vjp(parameters, config, name, raw, rotation, cotangent=g)
            norms |= norm
        else:
            g = clipped_vjp(raw, config.query_key_value_clip, cotangent=g)
        vectors[name], kernels[name] = arithmetic.affine_vjp(subscripts, x, parameters[name], g)
    sink = {"sink": inner["sink_h"]} if "sink_h" in inner else {}
    gradients: Gradients = {
        "parameters": {**kernels, **norms, **sink, "output": of_output},
        "query_btd": vectors["query"],
        "memory_bsd": vectors["key"] + vectors["value"],
    }
    return gradients | ({"mask_bhts": inner["mask_bhts"]} if "mask_bhts" in inner else {})


def placed_vjp(
    parameters: Tree,
    config: Config,
    name: str,
    x_bthk: Array,
    rotation: Rotation | None,
    *,
    cotangent: Array,
) -> tuple[Array, Gradients]:
    """Backward pass through rotation, clip and norm. Returns the same as `query_key_norm_vjp`."""
    after, limit = config.query_key_norm_after_rotation, config.query_key_value_clip
    norms = Gradients()
    raw_bthk = x_bthk if after else query_key_norm(parameters, config, name, x_bthk)
    if after:
        turned = rotated(config, clipped(x_bthk, limit), rotation)
        cotangent, norms = query_key_norm_vjp(parameters, config, name, turned, cotangent=cotangent)
    if rotation is not None:
        cotangent = rotary.rotated_vjp(rotation, config.rotary_layout, cotangent=cotangent)
    cotangent = clipped_vjp(raw_bthk, limit, cotangent=cotangent)
    if after:
        return cotangent, norms
    return query_key_norm_vjp(parameters, config, name, x_bthk, cotangent=cotangent)


def clipped_vjp(x_bthk: Array, limit: float | None, *, cotangent: Array) -> Array:
    """The gradient of `clipped`: clipped numbers pass none."""
    inside = limit is None or np.abs(x_bthk) <= x_bthk.dtype.type(limit)
    return np.where(inside, cotangent, cotangent.dtype.type(0))


def query_key_norm_vjp(
    parameters: Tree, config: Config, name: str, x_bthk: Array, *, cotangent: Array
) -> tuple[Array, Gradients]:
    """Returns the gradient of x, and that of the norm's parameters under the norm's name."""
    if config.query_key_norm == "none":
        return cotangent, {}
    norm, rows = f"{name}_norm", _rows(config, x_bthk)
    rows_btd, g_btd = x_bthk.reshape(rows), cotangent.reshape(rows)
    inner = normalization.norm_vjp(parameters.get(norm, {}), config, rows_btd, cotangent=g_btd)
    return inner["x_btd"].reshape(x_bthk.shape), {norm: inner["parameters"]}
