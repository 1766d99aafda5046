"""Token embedding and the logits that invert it."""

from collections.abc import Mapping

import numpy as np

from . import arithmetic, checks

__all__ = ["embedding", "logits"]


def embedding(parameters: Mapping[str, np.ndarray], token: np.ndarray, scale: bool) -> np.ndarray:
    """Rows of the table, by id or as a mixture: `x = sqrt(d)^scale * table[token]`.

    token: integer ids `b t`, or soft one-hot rows `b t v`, whose embedding is the weighted sum of the table's rows.
    parameters: table `v d`. Returns `b t d` in the table's dtype; half types multiply by sqrt(d) in float32 and round once.
    The padding id has an ordinary row: it is masked in attention, not zeroed here (EMBED).

    Raises ValueError on ids outside 0 .. v-1, other dtypes and other axes. Source: Vaswani et al. 2017, section 3.4.
    """
    table_vd = parameters["table"]
    ids = token.dtype.kind in "iu"
    bounds = (int(token.min()), int(token.max())) if ids and token.size else ()
    checks.check_tokens("token", token.shape, str(token.dtype), table_vd.shape[0], *bounds)
    x_btd = table_vd[token] if ids else arithmetic.einsum("btv,vd->btd", token.astype(table_vd.dtype, copy=False), table_vd)
    if not scale:
        return x_btd
    wide_btd = arithmetic.widen(x_btd)
    return (wide_btd * wide_btd.dtype.type(table_vd.shape[1] ** 0.5)).astype(table_vd.dtype, copy=False)


def logits(parameters: Mapping[str, np.ndarray], x_btd: np.ndarray) -> np.ndarray:
    """Scores of the next token before softmax: `logits = x W + b`, with b by config.

    parameters: kernel `d v` (tied: the transposed table), bias `v`. Returns `b t v`. Source: Vaswani et al. 2017, section 3.4.
    Raises ValueError where x is not `b t d`.
    """
    kernel_dv = parameters["kernel"]
    checks.check_features("x", x_btd.shape, kernel_dv.shape[0])
    logits_btv = arithmetic.einsum("btd,dv->btv", x_btd, kernel_dv)
    return logits_btv + parameters["bias"] if "bias" in parameters else logits_btv
