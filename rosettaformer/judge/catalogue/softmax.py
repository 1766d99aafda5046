"""Known bugs of the softmax: axis, dtype, meaning of the mask."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from ..expectation.patching import patched
from .alteration import Altered, Variants, on_arguments


def _over(*axes: int) -> Callable:
    """Runs the softmax over these axes together, if the logits have them."""

    def altered(original: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
        if logits.ndim < -min(axes) or not logits.size:
            return original(logits, mask)
        last = range(-len(axes), 0)
        moved = [np.moveaxis(np.broadcast_to(x, logits.shape), axes, last) for x in (logits, *([] if mask is None else [mask]))]
        weights = original(*(x.reshape(*x.shape[: -len(axes)], -1) for x in moved))
        return np.moveaxis(weights.reshape(moved[0].shape), last, axes)

    return altered


def inverted(mask: Any) -> Any:
    """Inverts the mask, if there is one."""
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


def _half_logits(original: Callable, query_bthk: np.ndarray, *rest: Any, **options: Any) -> np.ndarray:
    """Casts the attention logits to the query's dtype before the softmax."""

    def narrow(inner: Callable, logits: np.ndarray, mask: Any = None) -> np.ndarray:
        return inner(logits.astype(query_bthk.dtype, copy=False), mask)

    with patched({"softmax.softmax": narrow}):
        return original(query_bthk, *rest, **options)


ALTERED: Altered = {
    "ATT4": {"softmax.softmax": _over(-2)},
    "ATT8": {"softmax.softmax": on_arguments(mask=inverted)},
    "ATT19": {"softmax.softmax": _not_upcast, "attention.attention_weights": _half_logits},
}
VARIANTS: Variants = {
    "ATT4": {
        "the softmax runs over the heads": {"softmax.softmax": _over(-3)},
        "the softmax runs over the batch": {"softmax.softmax": _over(-4)},
        "the softmax runs over batch and heads together": {"softmax.softmax": _over(-4, -3)},
        "the softmax runs over queries and keys together": {"softmax.softmax": _over(-2, -1)},
        "the softmax runs over heads and keys together": {"softmax.softmax": _over(-3, -1)},
    },
}
