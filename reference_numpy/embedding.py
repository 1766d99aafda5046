"""Token and segment embeddings (EMBED), and the logits, which map vectors back to tokens."""

import numpy as np

from . import arithmetic, checks, softmax
from .arrays import Array, Gradients, Tree, bounds

__all__ = [
    "embedding",
    "embedding_vjp",
    "logits",
    "logits_vjp",
    "segment_embedding",
    "segment_embedding_vjp",
]


def embedding(
    parameters: Tree,
    token: Array,
    scale: bool,
    round_scale: bool = False,
    multiplier: float = 1.0,
) -> Array:
    """`x = multiplier sqrt(d)^scale table[token]`, `b t d`: the table row of every token.

    token: integer ids `b t`, or soft one-hot rows `b t v`, which give weighted sums of table rows.
    parameters: table `v d`. Half-precision dtypes multiply by sqrt(d) in float32 and round once;
    round_scale first rounds sqrt(d) to the dtype of the table (Gemma Team 2024, published code).
    The padding id has an ordinary row: attention masks it, the embedding does not zero it.

    Raises ValueError on ids outside 0 .. v-1, other dtypes and other axes. Source: Vaswani et al.
    2017, section 3.4; multiplier: Granite Team 2024, published code.
    """
    table_vd = parameters["table"]
    if _are_ids(token, table_vd.shape[0]):
        x_btd = table_vd[token]
    else:
        token_btv = token.astype(table_vd.dtype, copy=False)
        x_btd = arithmetic.einsum("btv,vd->btd", token_btv, table_vd)
    return _scaled(x_btd, scale, round_scale, multiplier)


def embedding_vjp(
    parameters: Tree,
    token: Array,
    scale: bool,
    round_scale: bool = False,
    multiplier: float = 1.0,
    *,
    cotangent: Array,
) -> Gradients:
    """`dtable[v] = multiplier sqrt(d)^scale sum_(token = v) g`: the sum over the positions of
    token v.

    For soft rows, `dtable = token^T g`, and the token has a gradient too, `g table^T`.
    """
    table_vd = parameters["table"]
    g_btd = _scaled(cotangent, scale, round_scale, multiplier)
    if _are_ids(token, table_vd.shape[0]):
        return {"parameters": {"table": arithmetic.scatter_add(g_btd, token, table_vd.shape[0])}}
    soft_btv = token.astype(table_vd.dtype, copy=False)
    token_btv, gradient_vd = arithmetic.einsum_vjp("btv,vd->btd", soft_btv, table_vd, g_btd)
    token_btv = token_btv.astype(token.dtype, copy=False)
    return {"parameters": {"table": gradient_vd}, "token": token_btv}


def _are_ids(token: Array, vocabulary: int) -> bool:
    """Returns True for ids, False for soft rows; raises ValueError on anything else."""
    checks.check_tokens("token", token.shape, str(token.dtype), vocabulary, *bounds(token))
    return token.dtype.kind in "iu"


def _scaled(x_btd: Array, scale: bool, round_scale: bool, multiplier: float) -> Array:
    wide_btd, root = arithmetic.upcast_half(x_btd), np.float64(x_btd.shape[2] ** 0.5)
    if scale:
        root = root.astype(x_btd.dtype) if round_scale else root
        wide_btd = wide_btd * root.astype(wide_btd.dtype)
    if multiplier != 1:
        wide_btd = wide_btd * wide_btd.dtype.type(multiplier)
    return wide_btd.astype(x_btd.dtype, copy=False)


def segment_embedding(parameters: Tree, segment_bs: Array) -> Array:
    """`x = table[segment]`, `b s d`: a learned vector for the sentence that a token belongs to.

    parameters: table `a d`. segment_bs: integers from 0 to a - 1. Raises ValueError on other values
    and axes. Source: Devlin et al. 2019, section 3.
    """
    kind, rows = str(segment_bs.dtype), len(parameters["table"])
    checks.check_rows("segment", segment_bs.shape, kind, rows, *bounds(segment_bs))
    return parameters["table"][segment_bs]


def segment_embedding_vjp(parameters: Tree, segment_bs: Array, *, cotangent: Array) -> Gradients:
    """`dtable[a] = sum_(segment = a) g`: the sum over the tokens of segment a."""
    table_ad = arithmetic.scatter_add(cotangent, segment_bs, len(parameters["table"]))
    return {"parameters": {"table": table_ad}}


def logits(parameters: Tree, x_btd: Array, scale: float = 1.0, cap: float | None = None) -> Array:
    """`logits = scale (x W + b)`, `b t v`: scores of the next token; the bias is optional.

    cap: returns `cap tanh(logits / cap)` instead; half-precision dtypes apply scale and cap in
    float32 and round once (SOFTCAP). parameters: kernel `d v` (tied: the transposed table), bias
    `v`. Raises ValueError if x is not `b t d`. Source: Vaswani et al. 2017, section 3.4; scale:
    Cohere 2024, Command R, published code; cap: Gemma Team 2024, Gemma 2, section 2.
    """
    checks.check_features("x", x_btd.shape, parameters["kernel"].shape[0])
    logits_btv = arithmetic.affine("btd,dv->btv", x_btd, parameters)
    if scale == 1 and cap is None:
        return logits_btv
    wide_btv = arithmetic.upcast_half(logits_btv)
    scaled_btv = wide_btv * wide_btv.dtype.type(scale)
    capped_btv = scaled_btv if cap is None else softmax.soft_cap(scaled_btv, cap)
    return capped_btv.astype(x_btd.dtype, copy=False)


def logits_vjp(
    parameters: Tree,
    x_btd: Array,
    scale: float = 1.0,
    cap: float | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """`dW = sum_bt x g`, `db = sum_bt g`, `dx = g W^T`, with g taken back through cap and scale."""
    if scale != 1 or cap is not None:
        wide_btv = arithmetic.upcast_half(arithmetic.affine("btd,dv->btv", x_btd, parameters))
        number, g_btv = wide_btv.dtype.type, arithmetic.upcast_half(cotangent)
        if cap is not None:
            g_btv = softmax.soft_cap_vjp(wide_btv * number(scale), cap, cotangent=g_btv)["x"]
        cotangent = (g_btv * number(scale)).astype(x_btd.dtype, copy=False)
    gradient_btd, gradients = arithmetic.affine_vjp("btd,dv->btv", x_btd, parameters, cotangent)
    return {"parameters": gradients, "x_btd": gradient_btd}
