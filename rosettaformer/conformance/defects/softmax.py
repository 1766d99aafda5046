"""Defects of the softmax and of how masks enter it."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import arithmetic, softmax
from reference_numpy import mask as masks

from .defect import Defect

__all__ = ["DEFECTS"]

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
    if mask is None:
        return original(logits)
    x = arithmetic.upcast_half(logits)
    weights = original(np.where(mask, x, x.dtype.type(-1e9))).astype(logits.dtype, copy=False)
    return np.where(mask.any(axis=-1, keepdims=True), weights, weights.dtype.type(0))


def _uniform_when_empty(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    weights = original(logits, mask)
    empty = np.zeros((1,), bool) if mask is None else ~mask.any(axis=-1, keepdims=True)
    return np.where(empty, weights.dtype.type(1 / logits.shape[-1]), weights)


def _inverted(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    return original(logits, None if mask is None else ~mask)


def _additive(mask: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """(1 - mask) * -1e9 in the dtype: in float16 -1e9 is -inf, and 0 * -inf is NaN."""
    with np.errstate(all="ignore"):
        return (1 - mask.astype(dtype)) * dtype.type(-1e9)


def _overflowing_fill(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
    if mask is None or logits.dtype != np.float16:
        return original(logits, mask)
    return original(logits + _additive(mask, logits.dtype))


def _overflowing_bias(
    original: Callable, query_bthk: np.ndarray, key_bsgk: np.ndarray, value_bsge: np.ndarray,
    mask_bhts: Any = None, bias_bhts: Any = None, causal: bool = False, *rest: Any, **options: Any,
) -> Any:  # fmt: skip
    future = masks.causal_mask(query_bthk.shape[1], key_bsgk.shape[1]) if causal else None
    visible = masks.combine_masks(mask_bhts, future)
    if visible is None or query_bthk.dtype != np.float16:
        return original(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, *rest, **options)
    added = _additive(visible, query_bthk.dtype)
    added = added if bias_bhts is None else added + bias_bhts
    return original(query_bthk, key_bsgk, value_bsge, None, added, False, *rest, **options)


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


def _defect(
    id_: str, title: str, what: str, shows: str, evidence: str, fix: Mapping[str, str], function: Callable, **options: Any
) -> Defect:  # fmt: skip
    return Defect(id_, title, "softmax", what, shows, fix, evidence, {"softmax.softmax": function}, **options)


_MASK = {
    "torch": 'logits = logits.masked_fill(~mask, float("-inf"))  # before the softmax; mask: True = may attend',
    "tf": "logits = tf.where(mask, logits, logits.dtype.min)  # before the softmax; mask: True = may attend",
    "jax": "weights = jax.nn.softmax(logits, where=mask)  # mask: True = may attend",
}
_FLOAT32 = {
    "torch": "weights = torch.softmax(logits, dim=-1, dtype=torch.float32).to(query.dtype)",
    "tf": "weights = tf.cast(tf.nn.softmax(tf.cast(logits, tf.float32)), query.dtype)",
    "jax": "weights = jax.nn.softmax(logits.astype(jnp.float32)).astype(query.dtype)",
}
DEFECTS = (
    _defect(
        "ATT4",
        "the softmax runs over the queries",
        "`sum over t` of the weights is 1 instead of `sum over s`: the softmax has the wrong axis.",
        "The weights of a query do not sum to 1. Any logits with more than one query show it.",
        "PyTorch-NLP#2, keras_lab",
        {
            "torch": "weights = torch.softmax(logits, dim=-1)  # logits b h t s",
            "tf": "weights = tf.nn.softmax(logits, axis=-1)  # logits b h t s",
            "jax": "weights = jax.nn.softmax(logits, axis=-1)  # logits b h t s",
        },
        _wrong_axis,
    ),
    _defect(
        "ATT5",
        "the mask is applied after the softmax",
        "`weights = softmax(x) * mask`: the masked entries still count in the denominator.",
        "The weights of a masked row sum to less than 1. Any padding shows it.",
        "pytorch-image-models#2236",
        _MASK,
        _masked_after,
    ),
    _defect(
        "ATT6",
        "masked logits become 0 or 1e-9",
        "`where(mask, x, 1e-9)`: a sign is lost from -1e9, and the masked entries weigh as much as a logit of 0.",
        "Padding is attended to. Any padding shows it.",
        "good-features#1, gluonts#1401",
        _MASK,
        _filled(1e-9),
    ),
    _defect(
        "ATT8",
        "an additive mask is read as a binary one: nonzero attends",
        "The mask of 0 (may attend) and -inf (hidden) goes to an argument that takes True = may attend; all that was hidden, and nothing "
        "else, is attended to, padding and future alike.",
        "Outputs depend on the masked tokens alone. Any mask shows it.",
        "mlverse/torch#1208",
        {
            "torch": "F.scaled_dot_product_attention(query, key, value, attn_mask=additive == 0)  # or pass the floating mask itself",
            "tf": "attention(query, value, attention_mask=tf.equal(additive, 0.0))",
            "jax": "jax.nn.dot_product_attention(query, key, value, bias=additive)  # or mask=(additive == 0)",
        },
        _inverted,
    ),
    Defect(
        id="ATT10",
        title="-1e9 overflows in float16: 0 * -inf is NaN",
        component="softmax",
        what="`x + (1 - mask) * -1e9` in float16, where -1e9 is -inf and `0 * -inf` is NaN.",
        shows="Every masked row is NaN, in float16 only. Any mask shows it.",
        fix={
            "torch": 'logits = logits.masked_fill(~mask, float("-inf"))',
            "tf": "logits = tf.where(mask, logits, logits.dtype.min)",
            "jax": "logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)",
        },
        evidence="flax#982, keras#17571, keras_lab",
        replaces={"softmax.softmax": _overflowing_fill, "attention.scaled_dot_product_attention": _overflowing_bias},
        dtypes=("float16",),
        rounding=True,
    ),
    _defect(
        "ATT12",
        "the finite fill is not below every logit",
        "`where(mask, x, -1e4)`: a fill that real logits can fall below.",
        "Ordinary logits agree, but for rows that may attend to nothing, which become uniform. Rows whose real logits are all below -1e4 "
        "attend to padding: large negative logits show it.",
        "TransformerLens#366",
        _MASK,
        _filled(-1e4),
    ),
    _defect(
        "ATT13",
        "a query without a key attends to all of them",
        "A row without an entry present becomes `1/s` in every entry, the softmax of equal fills, instead of 0.",
        "Only rows that may attend to nothing differ. A row of padding alone, or left padding with a causal mask, shows it.",
        "pytorch#41508, keras#21123, mlx#2395",
        {
            "torch": "weights = torch.where(mask.any(-1, keepdim=True), torch.softmax(logits, -1), 0)",
            "tf": "weights = tf.where(tf.reduce_any(mask, -1, keepdims=True), tf.nn.softmax(logits), 0)",
            "jax": "weights = jnp.where(mask.any(-1, keepdims=True), jax.nn.softmax(logits), 0)",
        },
        _uniform_when_empty,
    ),
    Defect(
        id="ATT19",
        title="the softmax of half-precision dtypes is not computed in float32",
        component="softmax",
        what="Exponentials, their sum and the quotient are rounded to the half-precision dtype, and so are the logits before them.",
        shows="A sum over many keys stops growing, so that the weights sum to more than 1; large logits lose their digits, or overflow. "
        "Long rows and large logits show it, in half-precision dtypes.",
        fix=_FLOAT32,
        evidence="pytorch#123911",
        replaces={"softmax.softmax": _not_upcast, "attention.scaled_dot_product_attention": _half_logits},
        dtypes=HALF,
        rounding=True,
    ),
    _defect(
        "ATT20",
        "the fill is -1e9 instead of -inf",
        "`where(mask, x, -1e9)` in float32, with rows that may attend to nothing set to 0.",
        "Nothing: the exponential of such a fill is exactly 0 beside any logit above -1e8.",
        "derived, not reported",
        _MASK,
        _filled_with_minus_1e9,
        unobservable="exp(-1e9 - largest) is exactly 0 unless every real logit of a row is near -1e9",
    ),
)
