"""Layer normalisation."""

from collections.abc import Mapping

import numpy as np

from . import arithmetic, checks

__all__ = ["layer_norm"]


def layer_norm(parameters: Mapping[str, np.ndarray], x_btd: np.ndarray, epsilon: float) -> np.ndarray:
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d (NORM).

    The variance is biased (divided by d) and taken in a second pass over the centred values, so that a large mean costs no accuracy.
    Half types compute in float32 up to and with the offset. parameters: scale `d`, offset `d`. Returns `b t d`.
    Raises ValueError where x is not `b t d`. Source: Ba et al. 2016, eq. 4.
    """
    checks.check_features("x", x_btd.shape, parameters["scale"].shape[0])
    wide_btd = arithmetic.widen(x_btd)
    centred_btd = wide_btd - arithmetic.mean(wide_btd, axis=-1)
    variance_bt1 = arithmetic.mean(centred_btd * centred_btd, axis=-1)
    normalised_btd = arithmetic.divide(centred_btd, np.sqrt(variance_bt1 + wide_btd.dtype.type(epsilon)))
    scale_d, offset_d = arithmetic.widen(parameters["scale"]), arithmetic.widen(parameters["offset"])
    return (normalised_btd * scale_d + offset_d).astype(x_btd.dtype, copy=False)
