"""Settings of the order: heads that are permuted, and axes that are reshaped where they must be transposed."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..reference.patching import within
from .alteration import LOADED, Alteration, setting
from .combinators import on_arguments, on_result

Array = np.ndarray
# the number of heads -> which one stands at each place
HEADS: dict[str, Callable[[int], Array]] = {
    "reversed": lambda count: np.arange(count)[::-1],
    "rolled by 1": lambda count: np.roll(np.arange(count), 1),
    "rolled by -1": lambda count: np.roll(np.arange(count), -1),
    "exchanged in pairs": lambda count: np.minimum(np.arange(count) ^ 1, count - 1) if count % 2 == 0 else _but_the_last(count),
    "even ones first": lambda count: np.concatenate([np.arange(0, count, 2), np.arange(1, count, 2)]),
}
# `b t d` that is read as if it lay in memory otherwise
READ: dict[str, Callable[[Array], Array]] = {
    "read as b d t": lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1]).swapaxes(1, 2),
    "laid out as b d t": lambda x: x.swapaxes(1, 2).reshape(x.shape),
    "read as t b d": lambda x: x.reshape(x.shape[1], x.shape[0], x.shape[2]).swapaxes(0, 1),
    "laid out as t b d": lambda x: x.swapaxes(0, 1).reshape(x.shape),
}


def _but_the_last(count: int) -> Array:
    return np.append(np.arange(count - 1) ^ 1, count - 1)


def _permuted(order: Callable[[int], Array]) -> Callable[[Array], Array]:
    return lambda x: x[:, :, order(x.shape[2])]


def _first(change: Callable[[Array], Array]) -> Callable[[Any], Any]:
    """Changes the output, also of a pair of output and weights."""
    return lambda result: (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)


def _exchanged(weights_bhts: Array) -> Array:
    return weights_bhts.swapaxes(2, 3) if weights_bhts.shape[2] == weights_bhts.shape[3] else weights_bhts


# the attention whose weights `b h t s`, where t is s, multiply the values with their last axes exchanged
_transposed_weights = within({"dropout.dropout": on_result(_exchanged)})


def orders() -> Iterator[Alteration]:
    """Heads in another order, and reshapes in place of transposes."""
    fix, component = "keep the heads of queries, keys, values and output in one order", "scaled_dot_product_attention"
    for name, order in HEADS.items():
        change = _permuted(order)
        for what, altered in (
            ("queries", on_arguments(query_bthk=change)),
            ("values", on_arguments(value_bsge=change)),
            ("output", on_result(_first(change))),
        ):
            title = f"the heads of the {what} are in another order: {name}"
            yield setting(f"heads of {what}={name}", component, title, fix, altered, elsewhere=LOADED)
    title, fix = "the weights are summed over the queries, not over the keys", "sum over the keys: b h t s, b s h e -> b t h e"
    yield setting("weights=transposed", component, title, fix, _transposed_weights)
    rows: dict[str, tuple[str, Callable[[Callable[[Array], Array]], Callable]]] = {
        "the input of the feed-forward": ("feed_forward", lambda change: on_arguments(x_btd=change)),
        "the output of the feed-forward": ("feed_forward", lambda change: on_result(change)),
        "the input of the attention": ("multi_head_attention", lambda change: on_arguments(query_btd=change, memory_bsd=change)),
        "the output of the attention": ("multi_head_attention", lambda change: on_result(_first(change))),
        "the input of the logits": ("logits", lambda change: on_arguments(x_btd=change)),
    }
    for what, (component, altering) in rows.items():
        for name, change in READ.items():
            title = f"{what}, b t d, is {name}: it is reshaped where it must be transposed"
            yield setting(f"{what}={name}", component, title, "transpose the axes, and then reshape", altering(change))
