"""Defects of the softmax and of how masks enter it."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import arithmetic, softmax
from reference_numpy import mask as masks

from .defect import Defect, on_arguments, on_call

__all__ = ["DEFECTS", "inverted"]

HALF = ("bfloat16", "float16")


def _wrong_axis(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    if logits.ndim < 2:
        return original(logits, mask)
    turned_mask = None if mask is None else np.broadcast_to(mask, logits.shape).swapaxes(-1, -2)
    return original(logits.swapaxes(-1, -2), turned_mask).swapaxes(-1, -2)


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


def _uniform_when_empty(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    weights = original(logits, mask)
    return weights if mask is None else np.where(mask.any(axis=-1, keepdims=True), weights, weights.dtype.type(1 / logits.shape[-1]))


def inverted(mask: Any) -> Any:
    """The mask, where there is one, read as True = may not attend."""
    return None if mask is None else ~mask


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


def _not_upcast(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    number = logits.dtype.type
    if not arithmetic.is_half(logits.dtype):
        return original(logits, mask)
    x = logits if mask is None else np.where(mask, logits, number(-np.inf))
    largest = x.max(axis=-1, keepdims=True)
    exponential = arithmetic.exp(x - np.where(np.isneginf(largest), number(0), largest))
    total = np.cumsum(exponential, axis=-1, dtype=logits.dtype)[..., -1:]
    return arithmetic.divide(exponential, np.where(total == 0, number(1), total))


def _half_logits(original: Callable, query_bthk: np.ndarray, *rest: Any, **options: Any) -> Any:
    """The attention that gives its softmax logits of the query's dtype."""
    inner = softmax.softmax

    def narrow(logits: np.ndarray, mask: Any = None) -> np.ndarray:
        return inner(logits.astype(query_bthk.dtype, copy=False), mask)

    with mock.patch.object(softmax, "softmax", narrow):
        return original(query_bthk, *rest, **options)


_MASK: dict[str, Any] = {
    "torch": 'logits = logits.masked_fill(~mask, float("-inf"))  # before the softmax; mask: True = may attend',
    "tf": "logits = tf.where(mask, logits, logits.dtype.min)  # before the softmax; mask: True = may attend",
    "jax": "weights = jax.nn.softmax(logits, where=mask)  # mask: True = may attend",
}
_FLOAT32: dict[str, Any] = {
    "torch": "weights = torch.softmax(logits, dim=-1, dtype=torch.float32).to(query.dtype)",
    "tf": "weights = tf.cast(tf.nn.softmax(tf.cast(logits, tf.float32)), query.dtype)",
    "jax": "weights = jax.nn.softmax(logits.astype(jnp.float32)).astype(query.dtype)",
}
DEFECTS = (
    Defect(
        id="ATT4",
        title="the softmax runs over the queries",
        what="`sum over t` of the weights is 1 instead of `sum over s`: the softmax has the wrong axis.",
        shows="The weights of a query do not sum to 1. Any logits with more than one query show it.",
        torch="weights = torch.softmax(logits, dim=-1)  # logits b h t s",
        tf="weights = tf.nn.softmax(logits, axis=-1)  # logits b h t s",
        jax="weights = jax.nn.softmax(logits, axis=-1)  # logits b h t s",
        evidence="PyTorch-NLP#2, keras_lab",
        replaces={"softmax.softmax": _wrong_axis},
    ),
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
        title="masked logits become 0 or 1e-9",
        what="`where(mask, x, 1e-9)`: a sign is lost from -1e9, and the masked entries weigh as much as a logit of 0.",
        shows="Padding is attended to. Any padding shows it.",
        **_MASK,
        evidence="good-features#1, gluonts#1401",
        replaces={"softmax.softmax": _filled(1e-9)},
    ),
    Defect(
        id="ATT8",
        title="an additive mask is read as a binary one: nonzero attends",
        what="The mask of 0 (may attend) and -inf (hidden) goes to an argument that takes True = may attend; all that was hidden, and "
        "nothing else, is attended to, padding and future alike.",
        shows="Outputs depend on the masked tokens alone. Any mask shows it.",
        torch="F.scaled_dot_product_attention(query, key, value, attn_mask=additive == 0)  # or pass the floating mask itself",
        tf="attention(query, value, attention_mask=tf.equal(additive, 0.0))",
        jax="jax.nn.dot_product_attention(query, key, value, bias=additive)  # or mask=(additive == 0)",
        evidence="mlverse/torch#1208",
        replaces={"softmax.softmax": on_arguments(mask=inverted)},
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
        title="the finite fill is not below every logit",
        what="`where(mask, x, -1e4)`: a fill that real logits can fall below.",
        shows="Ordinary logits agree, but for rows that may attend to nothing, which become uniform. Rows whose real logits are all below "
        "-1e4 attend to padding: large negative logits show it.",
        **_MASK,
        evidence="TransformerLens#366",
        replaces={"softmax.softmax": _filled(-1e4)},
    ),
    Defect(
        id="ATT13",
        title="a query without a key attends to all of them",
        what="A row without an entry present becomes `1/s` in every entry, the softmax of equal fills, instead of 0.",
        shows="Only rows that may attend to nothing differ. A row of padding alone, or left padding with a causal mask, shows it.",
        torch="weights = torch.where(mask.any(-1, keepdim=True), torch.softmax(logits, -1), 0)",
        tf="weights = tf.where(tf.reduce_any(mask, -1, keepdims=True), tf.nn.softmax(logits), 0)",
        jax="weights = jnp.where(mask.any(-1, keepdims=True), jax.nn.softmax(logits), 0)",
        evidence="pytorch#41508, keras#21123, mlx#2395",
        replaces={"softmax.softmax": _uniform_when_empty},
    ),
    Defect(
        id="ATT19",
        title="the softmax of half-precision dtypes is not computed in float32",
        what="Exponentials, their sum and the quotient are rounded to the half-precision dtype, and so are the logits before them.",
        shows="A sum over many keys stops growing, so that the weights sum to more than 1; large logits lose their digits, or overflow. "
        "Long rows and large logits show it, in half-precision dtypes.",
        **_FLOAT32,
        evidence="pytorch#123911",
        replaces={"softmax.softmax": _not_upcast, "attention.scaled_dot_product_attention": _half_logits},
        dtypes=HALF,
        rounding=True,
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
