"""Scaled dot-product attention and multi-head attention."""

from typing import Any

import numpy as np

from . import arithmetic, checks, dropout, mask, normalization, rotary, softmax
from .arrays import Array, Gradients, Mask, Tree
from .config import TransformerConfig as Config

__all__ = [
    "multi_head_attention",
    "multi_head_attention_vjp",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
]

Output = Any  # the output, or with return_weights (output, weights)


def scaled_dot_product_attention(
    query_bthk: Array,
    key_bsgk: Array,
    value_bsge: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
    window: int = 0,
    scale: float | None = None,
    cap: float | None = None,
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`.

    Returns the output `b t h e`; with return_weights also the weights `b h t s` before dropout.

    mask_bhts: boolean, True = may attend (MASK); axes of size 1 are broadcast. causal: also hide
    the keys that come after the query (CAUSAL). window: also hide the keys whose distance from the
    query is this or more (WINDOW); 0 hides none. scale: in place of `1 / sqrt(k)` (SCALE). cap:
    `soft_cap` of the scaled logits, before bias and mask (SOFTCAP). bias_bhts: added to the logits;
    -inf hides a key. keep_bhts: dropout mask of the weights, True = keep. A query that may attend
    to nothing returns zeros (EMPTY). Fewer key heads than query heads are shared: each serves `h/g`
    neighbouring query heads, the first of them the first `h/g`. Half-precision dtypes hold logits
    and softmax in float32 and round the weights before they multiply the values. Raises ValueError
    on shapes that do not fit. Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al.
    2023.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    key_bshk, value_bshe = repeat_kv(key_bsgk, query_bthk), repeat_kv(value_bsge, query_bthk)
    logits_bhts = _logits(query_bthk, key_bshk, bias_bhts, scale, cap)
    mask_bhts = _mask(logits_bhts.shape, mask_bhts, causal, window)
    weights_bhts = softmax.softmax(logits_bhts, mask_bhts).astype(query_bthk.dtype, copy=False)
    dropped_bhts = dropout.dropout(weights_bhts, keep_bhts, dropout_rate)
    output_bthe = arithmetic.einsum("bhts,bshe->bthe", dropped_bhts, value_bshe)
    return (output_bthe, weights_bhts) if return_weights else output_bthe


def scaled_dot_product_attention_vjp(
    query_bthk: Array,
    key_bsgk: Array,
    value_bsge: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
    window: int = 0,
    scale: float | None = None,
    cap: float | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """`dV = D(P)^T g`, `dP = D(g V^T)`, `dS = P (dP - sum_s P dP)`, `dQ = dS K / sqrt(k)`, `dK =
    dS^T Q / sqrt(k)`, with P the weights and D their dropout; a cap multiplies dS by its slope.

    A query that may attend to nothing passes zero gradient (EMPTY). The key and value heads that
    several query heads share get the sum. Half-precision dtypes hold dS in float32. Source: Dao et
    al. 2022, section 3.1.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    key_bshk, value_bshe = repeat_kv(key_bsgk, query_bthk), repeat_kv(value_bsge, query_bthk)
    logits_bhts = _logits(query_bthk, key_bshk, bias_bhts, scale, cap)
    mask_bhts = _mask(logits_bhts.shape, mask_bhts, causal, window)
    dtype, factor = query_bthk.dtype, logits_bhts.dtype.type(_scale(query_bthk, scale))
    weights_bhts = softmax.softmax(logits_bhts, mask_bhts).astype(dtype, copy=False)
    dropped_bhts = dropout.dropout(weights_bhts, keep_bhts, dropout_rate)
    g_bhts = arithmetic.einsum("bthe,bshe->bhts", cotangent, value_bshe)
    g_bhts = dropout.dropout_vjp(weights_bhts, keep_bhts, dropout_rate, cotangent=g_bhts)["x"]
    d_logits_bhts = softmax.softmax_vjp(logits_bhts, mask_bhts, cotangent=g_bhts)["logits"]
    g_bhts = d_logits_bhts
    if cap is not None:
        scores_bhts = _scores(query_bthk, key_bshk, scale)
        g_bhts = softmax.soft_cap_vjp(scores_bhts, cap, cotangent=g_bhts)["x"]
    wide_key_bshk, wide_query_bthk = (arithmetic.upcast_half(x) for x in (key_bshk, query_bthk))
    d_query_bthk = arithmetic.einsum("bhts,bshk->bthk", g_bhts, wide_key_bshk) * factor
    d_key_bshk = arithmetic.einsum("bhts,bthk->bshk", g_bhts, wide_query_bthk * factor)
    d_value_bshe = arithmetic.einsum("bhts,bthe->bshe", dropped_bhts, cotangent)
    gradients = {
        "query_bthk": d_query_bthk.astype(dtype, copy=False),
        "key_bsgk": sum_over_groups(d_key_bshk.astype(dtype), key_bsgk),
        "value_bsge": sum_over_groups(d_value_bshe, value_bsge),
    }
    if bias_bhts is not None:
        d_bias_bhts = arithmetic.unbroadcast(d_logits_bhts, bias_bhts.shape)
        gradients["bias_bhts"] = d_bias_bhts.astype(bias_bhts.dtype, copy=False)
    return gradients


def repeat_kv(key_bsgk: Array, query_bthk: Array) -> Array:
    """Keys or values, each head repeated for the query heads that share it."""
    heads, groups = query_bthk.shape[2], key_bsgk.shape[2]
    return np.repeat(key_bsgk, heads // groups, axis=2) if groups != heads else key_bsgk


def _scale(query_bthk: Array, scale: float | None) -> float:
    return query_bthk.shape[3] ** -0.5 if scale is None else scale


def _scores(query_bthk: Array, key_bshk: Array, scale: float | None) -> Array:
    """`query key^T / sqrt(k)`, at least in float32."""
    wide_query_bthk = arithmetic.upcast_half(query_bthk)
    scaled_bthk = wide_query_bthk * wide_query_bthk.dtype.type(_scale(query_bthk, scale))
    return arithmetic.einsum("bthk,bshk->bhts", scaled_bthk, arithmetic.upcast_half(key_bshk))


def _logits(
    query_bthk: Array,
    key_bshk: Array,
    bias_bhts: Array | None,
    scale: float | None,
    cap: float | None,
) -> Array:
    """`soft_cap(query key^T / sqrt(k)) + bias`."""
    logits_bhts = _scores(query_bthk, key_bshk, scale)
    if cap is not None:
        logits_bhts = softmax.soft_cap(logits_bhts, cap)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, str(bias_bhts.dtype), logits_bhts.shape)
        logits_bhts = logits_bhts + arithmetic.upcast_half(bias_bhts)
    return logits_bhts


def _mask(shape_bhts: tuple[int, ...], mask_bhts: Mask, causal: bool, window: int) -> Array | None:
    """The mask with causality and window in it."""
    target, source = shape_bhts[2:]
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, str(mask_bhts.dtype), shape_bhts)
    if causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, source))
    if window:
        mask_bhts = mask.combine_masks(mask_bhts, mask.window_mask(target, source, window))
    return mask_bhts


def sum_over_groups(gradient_bshk: Array, key_bsgk: Array) -> Array:
    """The gradient of `repeat_kv`: the sum over the query heads that share a head."""
    batch, source, groups, size = key_bsgk.shape
    grouped = gradient_bshk.reshape(batch, source, groups, gradient_bshk.shape[2] // groups, size)
    return arithmetic.unbroadcast(grouped, (batch, source, groups, 1, size))[:, :, :, 0]


def multi_head_attention(
    parameters: Tree,
    query_btd: Array,
    memory_bsd: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
    config: Config | None = None,
    layer: int | None = 0,
    position_bt: Array | None = None,
) -> Output:
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`, `output = sum_i
    head_i W_i^O + b^O`.

    query_btd: x, whose tokens attend; memory_bsd: m, what they attend to, which is x itself in
    self-attention. parameters: query.kernel `d h k`, key.kernel `d g k`, value.kernel `d g e`,
    output.kernel `h e d`; biases `h k`, `g k`, `g e`, `d` where present, and query_norm and
    key_norm by config. Returns the output `b t d`; with return_weights the output and the weights
    `b h t s`.

    config: norms queries and keys (QKNORM), then rotates them (ROTARY), scales and caps the logits
    (SCALE, SOFTCAP) and gives a layer its window (WINDOW); None does none of it. layer: the index
    of the layer whose self-attention it is; None, cross-attention, neither rotates nor has a
    window. position_bt: of the tokens; without it, token t has position t. Raises ValueError on
    shapes that do not fit. Source: Vaswani et al. 2017, section 3.2.2; query-key norm: Henry et al.
    2020, its place before the rotation: Yang et al. 2025, Qwen 3.
    """
    width = parameters["query"]["kernel"].shape[0]
    checks.check_features("query", query_btd.shape, width)
    checks.check_features("memory", memory_bsd.shape, width)
    query_bthk = queries(parameters, query_btd, config)
    key_bsgk, value_bsge = keys_and_values(parameters, memory_bsd, config)
    if turned := _rotation(config, layer, query_bthk, key_bsgk, position_bt):
        query_bthk, key_bsgk = (_rotated(x, config, turned) for x in (query_bthk, key_bsgk))
    return attend(
        parameters,
        query_bthk,
        key_bsgk,
        value_bsge,
        mask_bhts,
        bias_bhts,
        causal,
        return_weights,
        keep_bhts,
        dropout_rate,
        config,
        layer,
    )


def queries(parameters: Tree, query_btd: Array, config: Config | None = None) -> Array:
    """`x W^Q + b^Q`, normed by config: `b t h k`."""
    query_bthk = _projection("btd,dhk->bthk", parameters["query"], query_btd)
    return query_key_norm(parameters, "query", query_bthk, config)


def keys_and_values(
    parameters: Tree, memory_bsd: Array, config: Config | None = None
) -> tuple[Array, Array]:
    """`m W^K + b^K`, normed by config, and `m W^V + b^V`, which a cache may hold: `b s g k` and `b
    s g e`.
    """
    key_bsgk = _projection("bsd,dgk->bsgk", parameters["key"], memory_bsd)
    value_bsge = _projection("bsd,dge->bsge", parameters["value"], memory_bsd)
    return query_key_norm(parameters, "key", key_bsgk, config), value_bsge


def project(
    parameters: Tree,
    x_btd: Array,
    config: Config | None = None,
    layer: int | None = 0,
    position_bt: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The projections of self-attention, normed and rotated by config: query `b t h k`, key `b t g
    k` and value `b t g e`.
    """
    query_bthk = queries(parameters, x_btd, config)
    key_btgk, value_btge = keys_and_values(parameters, x_btd, config)
    if turned := _rotation(config, layer, query_bthk, key_btgk, position_bt):
        query_bthk, key_btgk = (_rotated(x, config, turned) for x in (query_bthk, key_btgk))
    return query_bthk, key_btgk, value_btge


def query_key_norm(parameters: Tree, name: str, x_bthk: Array, config: Config | None) -> Array:
    """`norm(x)` over the features of each head, or of all heads together (QKNORM).

    name: "query" or "key"; parameters: query_norm.scale `k` (head) or `h k` (width), and key_norm.
    """
    if config is None or config.query_key_norm == "none":
        return x_bthk
    normed_btd = normalization.norm(parameters[f"{name}_norm"], config, _rows(config, x_bthk))
    return normed_btd.reshape(x_bthk.shape)


def query_key_norm_vjp(
    parameters: Tree, name: str, x_bthk: Array, config: Config | None, *, cotangent: Array
) -> tuple[Array, Gradients]:
    """The gradient of x, and of the norm under its name."""
    if config is None or config.query_key_norm == "none":
        return cotangent, {}
    norm, rows_btd = f"{name}_norm", _rows(config, x_bthk)
    inner = normalization.norm_vjp(
        parameters[norm], config, rows_btd, cotangent=cotangent.reshape(rows_btd.shape)
    )
    return inner["x_btd"].reshape(x_bthk.shape), {norm: inner["parameters"]}


def _rows(config: Config, x_bthk: Array) -> Array:
    """x with what its norm divides by one root in the last of three axes."""
    batch, length, heads, size = x_bthk.shape
    if config.query_key_norm == "head":
        return x_bthk.reshape(batch, length * heads, size)
    return x_bthk.reshape(batch, length, heads * size)


def _rotation(
    config: Config | None,
    layer: int | None,
    query_bthk: Array,
    key_bsgk: Array,
    position_bt: Array | None,
) -> rotary.Rotation | None:
    """The rotation of the layer's queries and keys; None if it has none."""
    if config is None or layer is None or not config.layer_kind(layer).rotary:
        return None
    checks.check_same_length(query=query_bthk.shape, memory=key_bsgk.shape)
    if position_bt is None:
        position_bt = np.arange(query_bthk.shape[1])[None]
    checks.check_rotated(
        query_bthk.shape, position_bt.shape, str(position_bt.dtype), config.key_size
    )
    return rotary.rotation(config, config.layer_kind(layer), position_bt, query_bthk.dtype)


def _rotated(x_bthk: Array, config: Any, turned: rotary.Rotation) -> Array:
    return rotary.rotated(x_bthk, turned, config.rotary_layout)


def attend(
    parameters: Tree,
    query_bthk: Array,
    key_bsgk: Array,
    value_bsge: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
    config: Config | None = None,
    layer: int | None = 0,
) -> Output:
    """`multi_head_attention`, given its queries, keys and values."""
    output_bthe, weights_bhts = scaled_dot_product_attention(
        query_bthk,
        key_bsgk,
        value_bsge,
        mask_bhts,
        bias_bhts,
        causal,
        True,
        keep_bhts,
        dropout_rate,
        **_settings(config, layer),
    )
    output_btd = _projection("bthe,hed->btd", parameters["output"], output_bthe)
    return (output_btd, weights_bhts) if return_weights else output_btd


def _settings(config: Config | None, layer: int | None) -> dict[str, Any]:
    """The window of a layer, and the scale and cap of the logits, where they are not the usual."""
    if config is None:
        return {}
    window = 0 if layer is None else config.layer_kind(layer).window
    found = {"window": window or None, "scale": config.score_scale, "cap": config.score_cap}
    return {name: value for name, value in found.items() if value is not None}


def multi_head_attention_vjp(
    parameters: Tree,
    query_btd: Array,
    memory_bsd: Array,
    mask_bhts: Mask = None,
    bias_bhts: Array | None = None,
    causal: bool = False,
    keep_bhts: Mask = None,
    dropout_rate: float = 0.0,
    config: Config | None = None,
    layer: int | None = 0,
    position_bt: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the output projection, the attention, rotation and norm, and the three
    projections.

    Returns parameters, query_btd, memory_bsd, and bias_bhts if there is a bias. In self-attention
    the gradient of x is the sum of query_btd and memory_bsd.
    """
    raw_bthk = _projection("btd,dhk->bthk", parameters["query"], query_btd)
    raw_bsgk = _projection("bsd,dgk->bsgk", parameters["key"], memory_bsd)
    value_bsge = _projection("bsd,dge->bsge", parameters["value"], memory_bsd)
    query_bthk = query_key_norm(parameters, "query", raw_bthk, config)
    key_bsgk = query_key_norm(parameters, "key", raw_bsgk, config)
    if turned := _rotation(config, layer, query_bthk, key_bsgk, position_bt):
        query_bthk, key_bsgk = (_rotated(x, config, turned) for x in (query_bthk, key_bsgk))
    settings: dict[str, Any] = {
        "causal": causal,
        "keep_bhts": keep_bhts,
        "dropout_rate": dropout_rate,
        **_settings(config, layer),
    }
    output_bthe = scaled_dot_product_attention(
        query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, **settings
    )
    g_bthe, output = arithmetic.affine_vjp(
        "bthe,hed->btd", output_bthe, parameters["output"], cotangent
    )
    inner = scaled_dot_product_attention_vjp(
        query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, **settings, cotangent=g_bthe
    )
    g_bthk, g_bsgk, norms = inner["query_bthk"], inner["key_bsgk"], {}
    if turned and config is not None:
        g_bthk, g_bsgk = (
            rotary.rotated_vjp(turned, config.rotary_layout, cotangent=g) for g in (g_bthk, g_bsgk)
        )
    g_bthk, norms["query"] = query_key_norm_vjp(
        parameters, "query", raw_bthk, config, cotangent=g_bthk
    )
    g_bsgk, norms["key"] = query_key_norm_vjp(parameters, "key", raw_bsgk, config, cotangent=g_bsgk)
    gradient_btd, query = arithmetic.affine_vjp(
        "btd,dhk->bthk", query_btd, parameters["query"], g_bthk
    )
    from_key_bsd, key = arithmetic.affine_vjp(
        "bsd,dgk->bsgk", memory_bsd, parameters["key"], g_bsgk
    )
    from_value_bsd, value = arithmetic.affine_vjp(
        "bsd,dge->bsge", memory_bsd, parameters["value"], inner["value_bsge"]
    )
    own = {"query": query, "key": key, "value": value, "output": output}
    gradients = {
        "parameters": own | norms["query"] | norms["key"],
        "query_btd": gradient_btd,
        "memory_bsd": from_key_bsd + from_value_bsd,
    }
    return gradients | ({"bias_bhts": inner["bias_bhts"]} if bias_bhts is not None else {})


def _projection(subscripts: str, parameters: Tree, x: Array) -> Array:
    """One of the four projections, identified by its subscripts."""
    return arithmetic.affine(subscripts, x, parameters)
