"""Defects of the softmax: its axis, its dtype, what its mask means."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import arithmetic, softmax

from .defect import Defect, on_arguments

__all__ = ["DEFECTS", "inverted"]

HALF = ("bfloat16", "float16")


def _over(*axes: int) -> Callable:
    """The softmax over these axes together, where the logits have as many."""

    def altered(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
        if logits.ndim < -min(axes) or not logits.size:
            return original(logits, mask)
        last = range(-len(axes), 0)
        moved = [np.moveaxis(np.broadcast_to(x, logits.shape), axes, last) for x in (logits, *([] if mask is None else [mask]))]
        weights = original(*(x.reshape(*x.shape[: -len(axes)], -1) for x in moved))
        return np.moveaxis(weights.reshape(moved[0].shape), last, axes)

    return altered


def inverted(mask: Any) -> Any:
    """The mask, where there is one, read as True = may not attend."""
    return None if mask is None else ~mask


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
        variants={
            "the softmax runs over the heads": {"softmax.softmax": _over(-3)},
            "the softmax runs over the batch": {"softmax.softmax": _over(-4)},
            "the softmax runs over batch and heads together": {"softmax.softmax": _over(-4, -3)},
            "the softmax runs over queries and keys together": {"softmax.softmax": _over(-2, -1)},
            "the softmax runs over heads and keys together": {"softmax.softmax": _over(-3, -1)},
        },
        evidence="PyTorch-NLP#2, vision-transformer#1, keras_lab",
        replaces={"softmax.softmax": _over(-2)},
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
)
