"""Defects of the softmax and of how masks enter it."""

from typing import Any

import numpy as np

from reference_numpy import softmax

from .defect import Defect

__all__ = ["DEFECTS"]

_softmax = softmax.softmax
HALF = ("bfloat16", "float16")


def _wrong_axis(logits: Any, mask: Any = None) -> np.ndarray:
    if logits.ndim < 2:
        return _softmax(logits, mask)
    turned_mask = None if mask is None else np.broadcast_to(mask, logits.shape).swapaxes(-1, -2)
    return _softmax(logits.swapaxes(-1, -2), turned_mask).swapaxes(-1, -2)


def _masked_after(logits: Any, mask: Any = None) -> np.ndarray:
    weights = _softmax(logits)
    return weights if mask is None else weights * mask.astype(weights.dtype)


def _filled(logits: Any, mask: Any, fill: float) -> np.ndarray:
    return _softmax(logits if mask is None else np.where(mask, logits, logits.dtype.type(fill)))


def _filled_with_nearly_zero(logits: Any, mask: Any = None) -> np.ndarray:
    return _filled(logits, mask, 1e-9)


def _filled_too_small(logits: Any, mask: Any = None) -> np.ndarray:
    return _filled(logits, mask, -1e4)


def _uniform_when_empty(logits: Any, mask: Any = None) -> np.ndarray:
    weights = _softmax(logits, mask)
    empty = np.zeros((1,), bool) if mask is None else ~mask.any(axis=-1, keepdims=True)
    return np.where(empty, weights.dtype.type(1 / logits.shape[-1]), weights)


def _inverted(logits: Any, mask: Any = None) -> np.ndarray:
    return _softmax(logits, None if mask is None else ~mask)


def _overflowing_fill(logits: Any, mask: Any = None) -> np.ndarray:
    if mask is None:
        return _softmax(logits)
    with np.errstate(all="ignore"):
        return _softmax(logits + (1 - mask.astype(logits.dtype)) * logits.dtype.type(-1e9))


def _not_widened(logits: Any, mask: Any = None) -> np.ndarray:
    if mask is not None:
        return _softmax(logits, mask)
    exponential = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponential / np.cumsum(exponential, axis=-1, dtype=logits.dtype)[..., -1:]


def _defect(id_: str, title: str, evidence: str, function: Any, dtypes: tuple[str, ...] = ("float32",)) -> Defect:
    return Defect(id_, title, "softmax", evidence, {"softmax.softmax": function}, dtypes)


DEFECTS = (
    _defect("ATT4", "the softmax runs over the queries", "PyTorch-NLP#2", _wrong_axis),
    _defect("ATT5", "the mask is applied after the softmax", "pytorch-image-models#2236", _masked_after),
    _defect("ATT6", "masked logits become 0 or 1e-9", "good-features#1, gluonts#1401", _filled_with_nearly_zero),
    _defect("ATT8", "an additive mask is read as a binary one: nonzero attends", "mlverse/torch#1208", _inverted),
    _defect("ATT10", "-1e9 overflows in float16: 0 * -inf is NaN", "flax#982, keras#17571", _overflowing_fill, ("float16",)),
    _defect("ATT12", "the finite fill is not below every logit", "TransformerLens#366", _filled_too_small),
    _defect("ATT13", "a query without a key attends to all of them", "pytorch#41508, keras#21123, mlx#2395", _uniform_when_empty),
    _defect("ATT19", "the softmax of half types is not computed in float32", "pytorch#123911", _not_widened, HALF),
)
