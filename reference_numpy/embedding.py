"""Token and segment embedding (EMBED), and the logits that invert the first."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import arithmetic, checks

__all__ = [
    "embedding",
    "embedding_vjp",
    "logits",
    "logits_vjp",
    "segment_embedding",
    "segment_embedding_vjp",
]


def embedding(parameters: Mapping[str, np.ndarray], token: np.ndarray, scale: bool) -> np.ndarray:
    """Rows of the table, by id or as a mixture: `x = sqrt(d)^scale * table[token]`.

    token: integer ids `b t`, or soft one-hot rows `b t v`, whose embedding is the weighted sum of the table's rows.
    parameters: table `v d`. Returns `b t d` in the table's dtype; half-precision dtypes multiply by sqrt(d) in float32 and round once.
    The padding id has an ordinary row: it is masked in attention, not zeroed here (EMBED).

    Raises ValueError on ids outside 0 .. v-1, other dtypes and other axes. Source: Vaswani et al. 2017, section 3.4.
    """
    table_vd = parameters["table"]
    ids = _are_ids(token, table_vd.shape[0])
    x_btd = (
        table_vd[token]
        if ids
        else arithmetic.einsum("btv,vd->btd", token.astype(table_vd.dtype, copy=False), table_vd)
    )
    return _scaled(x_btd) if scale else x_btd


def embedding_vjp(
    parameters: Mapping[str, np.ndarray], token: np.ndarray, scale: bool, *, cotangent: np.ndarray
) -> dict[str, Any]:
    """`dtable[v] = sqrt(d)^scale sum_(token = v) g`: the sum over the places where v stands; a row that stands nowhere gets zero.

    Soft rows: `dtable = token^T g`, and the token has a gradient too, `g table^T`.
    """
    table_vd = parameters["table"]
    g_btd = _scaled(cotangent) if scale else cotangent
    if _are_ids(token, table_vd.shape[0]):
        return {"parameters": {"table": arithmetic.scatter_add(g_btd, token, table_vd.shape[0])}}
    token_btv, gradient_vd = arithmetic.einsum_vjp(
        "btv,vd->btd", token.astype(table_vd.dtype, copy=False), table_vd, g_btd
    )
    return {
        "parameters": {"table": gradient_vd},
        "token": token_btv.astype(token.dtype, copy=False),
    }


def _are_ids(token: np.ndarray, vocabulary: int) -> bool:
    """Whether tokens are ids, otherwise soft rows; raises ValueError where they are neither."""
    ids = token.dtype.kind in "iu"
    bounds = (int(token.min()), int(token.max())) if ids and token.size else ()
    checks.check_tokens("token", token.shape, str(token.dtype), vocabulary, *bounds)
    return ids


def _scaled(x_btd: np.ndarray) -> np.ndarray:
    wide_btd = arithmetic.upcast_half(x_btd)
    return (wide_btd * wide_btd.dtype.type(x_btd.shape[2] ** 0.5)).astype(x_btd.dtype, copy=False)


def segment_embedding(parameters: Mapping[str, np.ndarray], segment_bs: np.ndarray) -> np.ndarray:
    """Rows of the table of segments: `x = table[segment]`, `b s d`: which sentence of several a token is of.

    parameters: table `a d`. segment_bs: integers from 0 to a - 1. Raises ValueError on other segments and axes.
    Source: Devlin et al. 2019, section 3.
    """
    bounds = (int(segment_bs.min()), int(segment_bs.max())) if segment_bs.size else ()
    checks.check_rows(
        "segment", segment_bs.shape, str(segment_bs.dtype), len(parameters["table"]), *bounds
    )
    return parameters["table"][segment_bs]


def segment_embedding_vjp(
    parameters: Mapping[str, np.ndarray], segment_bs: np.ndarray, *, cotangent: np.ndarray
) -> dict[str, Any]:
    """`dtable[a] = sum_(segment = a) g`: the sum over the tokens of segment a."""
    return {
        "parameters": {
            "table": arithmetic.scatter_add(cotangent, segment_bs, len(parameters["table"]))
        }
    }


def logits(parameters: Mapping[str, np.ndarray], x_btd: np.ndarray) -> np.ndarray:
    """Scores of the next token before softmax: `logits = x W + b`, with b by config.

    parameters: kernel `d v` (tied: the transposed table), bias `v`. Returns `b t v`. Source: Vaswani et al. 2017, section 3.4.
    Raises ValueError where x is not `b t d`.
    """
    checks.check_features("x", x_btd.shape, parameters["kernel"].shape[0])
    return arithmetic.affine("btd,dv->btv", x_btd, parameters)


def logits_vjp(
    parameters: Mapping[str, np.ndarray], x_btd: np.ndarray, *, cotangent: np.ndarray
) -> dict[str, Any]:
    """`dW = sum_bt x g`, `db = sum_bt g`, `dx = g W^T`."""
    gradient_btd, gradients = arithmetic.affine_vjp("btd,dv->btv", x_btd, parameters, cotangent)
    return {"parameters": gradients, "x_btd": gradient_btd}
