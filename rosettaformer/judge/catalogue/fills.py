"""Known bugs of how a mask enters the softmax: too late, or with a fill that hides too little."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic
from reference_numpy import mask as masks

from .alteration import Altered, Variants, on_call


def _masked_after(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    weights = original(logits)
    return weights if mask is None else weights * mask.astype(weights.dtype)


def filled(fill: float) -> Callable:
    """Fills masked logits with this number."""

    def altered(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
        return original(logits if mask is None else np.where(mask, logits, logits.dtype.type(fill)))

    return altered


def _added(number: float) -> Callable:
    """Adds this number to masked logits."""

    def altered(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
        return original(logits if mask is None else np.where(mask, logits, logits + logits.dtype.type(number)))

    return altered


def _filled_with_minus_1e9(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    weights = filled(-1e9)(original, arithmetic.upcast_half(logits), mask).astype(logits.dtype, copy=False)
    return weights if mask is None else np.where(mask.any(axis=-1, keepdims=True), weights, weights.dtype.type(0))


def uniform_when_empty(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    """Gives all entries of a fully masked row the same weight."""
    weights = original(logits, mask)
    return weights if mask is None else np.where(mask.any(axis=-1, keepdims=True), weights, weights.dtype.type(1 / logits.shape[-1]))


def _unmasked_when_empty(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    return original(logits, None if mask is None else mask | ~mask.any(axis=-1, keepdims=True))


def _additive(mask: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`(1 - mask) * -1e9` in the dtype: in float16 -1e9 is -inf, and 0 * -inf is NaN."""
    with np.errstate(all="ignore"):
        return (1 - mask.astype(dtype)) * dtype.type(-1e9)


def _overflowing_fill(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    if mask is None or logits.dtype != np.float16:
        return original(logits, mask)
    return original(logits + _additive(mask, logits.dtype))


def _overflowing_bias(query_bthk: np.ndarray, key_bsgk: np.ndarray, mask_bhts: Any, bias_bhts: Any, causal: bool, **others: Any) -> dict:
    future = masks.causal_mask(query_bthk.shape[1], key_bsgk.shape[1]) if causal else None
    visible = masks.combine_masks(mask_bhts, future)
    if visible is None or query_bthk.dtype != np.float16:
        return {}
    added = _additive(visible, query_bthk.dtype)
    return {"mask_bhts": None, "bias_bhts": added if bias_bhts is None else added + bias_bhts, "causal": False}


ALTERED: Altered = {
    "ATT5": {"softmax.softmax": _masked_after},
    "ATT6": {"softmax.softmax": filled(1e-9)},
    "ATT10": {"softmax.softmax": _overflowing_fill, "attention.scaled_dot_product_attention": on_call(_overflowing_bias)},
    "ATT12": {"softmax.softmax": filled(-1e4)},
    "ATT13": {"softmax.softmax": uniform_when_empty},
    "ATT20": {"softmax.softmax": _filled_with_minus_1e9},
}
VARIANTS: Variants = {
    "ATT6": {
        "masked logits become 0 (the logits are multiplied by the mask)": {"softmax.softmax": filled(0.0)},
        "masked logits become -1e-12": {"softmax.softmax": filled(-1e-12)},
        "masked logits become -1": {"softmax.softmax": filled(-1.0)},
        "masked logits become 1e9": {"softmax.softmax": filled(1e9)},
        "masked logits become 1": {"softmax.softmax": filled(1.0)},
    },
    "ATT12": {
        **{f"the mask fill of {name} is not below every logit": {"softmax.softmax": filled(float(name))} for name in ("-100", "-1e3")},
        "-1e4 is added to masked logits, which can exceed other logits": {"softmax.softmax": _added(-1e4)},
    },
    "ATT13": {
        "a query that may attend to nothing ignores the mask": {"softmax.softmax": _unmasked_when_empty},
    },
}
