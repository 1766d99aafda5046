"""Defects of how a mask enters the softmax: too late, or by a number that hides too little."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic
from reference_numpy import mask as masks

from .defect import Defect, on_call

__all__ = ["DEFECTS", "uniform_when_empty"]


def _masked_after(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    weights = original(logits)
    return weights if mask is None else weights * mask.astype(weights.dtype)


def _filled(fill: float) -> Callable:
    """The softmax whose masked logits are this number."""

    def altered(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
        return original(logits if mask is None else np.where(mask, logits, logits.dtype.type(fill)))

    return altered


def _filled_with_minus_1e9(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    weights = _filled(-1e9)(original, arithmetic.upcast_half(logits), mask).astype(logits.dtype, copy=False)
    return weights if mask is None else np.where(mask.any(axis=-1, keepdims=True), weights, weights.dtype.type(0))


def uniform_when_empty(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    """The softmax whose rows without an entry present weigh all entries alike."""
    weights = original(logits, mask)
    return weights if mask is None else np.where(mask.any(axis=-1, keepdims=True), weights, weights.dtype.type(1 / logits.shape[-1]))


def _unmasked_when_empty(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    return original(logits, None if mask is None else mask | ~mask.any(axis=-1, keepdims=True))


def _additive(mask: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """(1 - mask) * -1e9 in the dtype: in float16 -1e9 is -inf, and 0 * -inf is NaN."""
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


_MASK: dict[str, Any] = {
    "torch": 'logits = logits.masked_fill(~mask, float("-inf"))  # before the softmax; mask: True = may attend',
    "tf": "logits = tf.where(mask, logits, logits.dtype.min)  # before the softmax; mask: True = may attend",
    "jax": "weights = jax.nn.softmax(logits, where=mask)  # mask: True = may attend",
}

_EMPTY = "a query that may attend to nothing averages all values"

DEFECTS = (
    Defect(
        id="ATT5",
        title="the mask is applied after the softmax",
        what="`weights = softmax(x) * mask`: the masked entries still count in the denominator.",
        shows="The weights of a masked row sum to less than 1. Any padding shows it.",
        **_MASK,
        evidence="pytorch-image-models#2236",
        replaces={"softmax.softmax": _masked_after},
    ),
    Defect(
        id="ATT6",
        title="masked logits become 1e-9, or another number next to 0",
        what="`where(mask, x, 1e-9)`: a sign is lost from -1e9, or the mask is multiplied, and the masked entries weigh as much as a logit "
        "of 0.",
        shows="Padding is attended to. Any padding shows it.",
        **_MASK,
        variants={
            "masked logits become 0 (the mask is multiplied)": {"softmax.softmax": _filled(0.0)},
            "masked logits become -1e-12": {"softmax.softmax": _filled(-1e-12)},
            "masked logits become -1": {"softmax.softmax": _filled(-1.0)},
            "masked logits become 1e9": {"softmax.softmax": _filled(1e9)},
            "masked logits become 1": {"softmax.softmax": _filled(1.0)},
        },
        evidence="good-features#1, gluonts#1401, hyunwoongko/transformer#10",
        replaces={"softmax.softmax": _filled(1e-9)},
    ),
    Defect(
        id="ATT10",
        title="-1e9 overflows in float16: 0 * -inf is NaN",
        what="`x + (1 - mask) * -1e9` in float16, where -1e9 is -inf and `0 * -inf` is NaN.",
        shows="Every masked row is NaN, in float16 only. Any mask shows it.",
        torch='logits = logits.masked_fill(~mask, float("-inf"))',
        tf="logits = tf.where(mask, logits, logits.dtype.min)",
        jax="logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)",
        evidence="flax#982, keras#17571, keras_lab",
        replaces={"softmax.softmax": _overflowing_fill, "attention.scaled_dot_product_attention": on_call(_overflowing_bias)},
        dtypes=("float16",),
        rounding=True,
    ),
    Defect(
        id="ATT12",
        title="the finite fill, -1e4, is not below every logit",
        what="`where(mask, x, -1e4)`: a fill that real logits can fall below.",
        shows="Ordinary logits agree, but for rows that may attend to nothing, which become uniform. Rows whose real logits are all below "
        "-1e4 attend to padding: large negative logits show it.",
        **_MASK,
        variants={
            f"the finite fill, {name}, is not below every logit": {"softmax.softmax": _filled(float(name))} for name in ("-100", "-1e3")
        },
        family=_EMPTY,
        evidence="TransformerLens#366",
        replaces={"softmax.softmax": _filled(-1e4)},
    ),
    Defect(
        id="ATT13",
        title="a query without a key attends to all of them alike",
        what="A row without an entry present becomes `1/s` in every entry, the softmax of equal fills, instead of 0; or the softmax of its "
        "logits, from all of which -1e9 is subtracted.",
        shows="Only rows that may attend to nothing differ. A row of padding alone, or left padding with a causal mask, shows it.",
        torch="weights = torch.where(mask.any(-1, keepdim=True), torch.softmax(logits, -1), 0)",
        tf="weights = tf.where(tf.reduce_any(mask, -1, keepdims=True), tf.nn.softmax(logits), 0)",
        jax="weights = jnp.where(mask.any(-1, keepdims=True), jax.nn.softmax(logits), 0)",
        variants={
            "a query without a key attends to all of them as if there were no mask": {"softmax.softmax": _unmasked_when_empty},
        },
        family=_EMPTY,
        evidence="pytorch#41508, keras#21123, mlx#2395",
        replaces={"softmax.softmax": uniform_when_empty},
    ),
    Defect(
        id="ATT20",
        title="the fill is -1e9 instead of -inf",
        what="`where(mask, x, -1e9)` in float32, with rows that may attend to nothing set to 0.",
        shows="Nothing: the exponential of such a fill is exactly 0 beside any logit above -1e8.",
        **_MASK,
        evidence="derived, not reported",
        replaces={"softmax.softmax": _filled_with_minus_1e9},
        unobservable="exp(-1e9 - largest) is exactly 0 unless every real logit of a row is near -1e9",
    ),
)
