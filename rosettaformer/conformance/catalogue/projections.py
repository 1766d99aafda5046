"""Defects of the four projections, and of how many heads there are and where they go."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .alteration import Altered, Array, Replaces, Variants, bound, on_arguments
from .kernels import PROJECTIONS, SITES

PROJECTION, ATTENTION = "attention._projection", "attention.scaled_dot_product_attention"


def _shared(**others: str) -> Replaces:
    """Gives these projections the parameters of another one, if the shapes are equal."""

    def read(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        same = {
            name: parameters[other]
            for name, other in others.items()
            if parameters[name]["kernel"].shape == parameters[other]["kernel"].shape
        }
        return dict(parameters) | same

    return dict.fromkeys(SITES, on_arguments(parameters=read))


def _left_out(*names: str) -> Replaces:
    """Only splits or merges the heads in these projections, if the widths allow it; merged heads may have another width than the model."""
    left_out = {PROJECTIONS[name] for name in names}

    def altered(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
        y = original(subscripts, parameters, x)
        if subscripts not in left_out or not x.shape[0]:
            return y
        if subscripts == PROJECTIONS["output"]:
            return x.reshape(*x.shape[:2], -1)
        return x.reshape(y.shape) if x.size == y.size else y

    return {PROJECTION: altered}


def _active(*names: str) -> Replaces:
    """Applies ReLU to these projections."""
    active = {PROJECTIONS[name] for name in names}

    def altered(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
        y = original(subscripts, parameters, x)
        return np.maximum(y, y.dtype.type(0)) if subscripts in active else y

    return {PROJECTION: altered}


def _one_head(wide: bool) -> Replaces:
    """Takes the heads as one of width h k, scaled by its root (wide) or by sqrt(k), if no mask or key differs by head."""

    def altered(original: Callable, query_bthk: Array, key_bsgk: Array, value_bsge: Array, *rest: Any, **options: Any) -> Any:
        batch, target, heads, _ = query_bthk.shape
        arguments = bound(original, query_bthk, key_bsgk, value_bsge, *rest, **options)
        by_head = [x for x in (arguments["mask_bhts"], arguments["bias_bhts"], arguments["keep_bhts"]) if x is not None and x.shape[1] > 1]
        if heads != key_bsgk.shape[2] or by_head or not query_bthk.size:
            return original(query_bthk, key_bsgk, value_bsge, *rest, **options)
        query, key, value = (x.reshape(*x.shape[:2], 1, -1) for x in (query_bthk, key_bsgk, value_bsge))
        query = query if wide else query * query.dtype.type(heads**0.5)
        given = arguments | {"query_bthk": query, "key_bsgk": key, "value_bsge": value, "return_weights": True}
        output, weights = original(**given)
        output = output.reshape(batch, target, heads, -1)
        return (output, np.repeat(weights, heads, axis=1)) if arguments["return_weights"] else output

    return {ATTENTION: altered}


def _over_heads(original: Callable, query_bthk: Array, key_bsgk: Array, value_bsge: Array, *rest: Any, **options: Any) -> Any:
    """Lets the heads of each position attend to each other: `b t` is the batch, `h` the positions."""
    arguments = bound(original, query_bthk, key_bsgk, value_bsge, *rest, **options)
    if query_bthk.shape[:3] != key_bsgk.shape[:3] or arguments["keep_bhts"] is not None:
        return original(query_bthk, key_bsgk, value_bsge, *rest, **options)
    one = (x.reshape(-1, *x.shape[2:])[:, :, None] for x in (query_bthk, key_bsgk, value_bsge))
    output = original(*one).reshape(*query_bthk.shape[:3], -1)
    if not arguments["return_weights"]:
        return output
    _, weights = original(query_bthk, key_bsgk, value_bsge, *rest, **options)
    return output, weights


def _with_query(original: Callable, parameters: Any, query_btd: Array, *rest: Any, **options: Any) -> Any:
    result = original(parameters, query_btd, *rest, **options)
    return (result[0] + query_btd, result[1]) if isinstance(result, tuple) else result + query_btd


ALTERED: Altered = {
    "MHA13": _shared(query="key"),
    "MHA14": _left_out("output"),
    "MHA15": _active("query", "key", "value"),
    "MHA16": _one_head(wide=True),
    "MHA17": {ATTENTION: _over_heads},
    "MHA19": {"attention.multi_head_attention": _with_query},
}
VARIANTS: Variants = {
    "MHA13": {
        "the key is projected by the query's kernel": _shared(key="query"),
        "the value is projected by the key's kernel": _shared(value="key"),
        "the key is projected by the value's kernel": _shared(key="value"),
        "one kernel, the query's, projects all three": _shared(key="query", value="query"),
    },
    "MHA14": {f"the {name} projection is missing": _left_out(name) for name in ("query", "key", "value")},
    "MHA15": {
        "all four projections pass through ReLU": _active(*PROJECTIONS),
        "the output projection passes through ReLU": _active("output"),
    },
    "MHA16": {"the heads are one head of width h k, scaled by sqrt(k)": _one_head(wide=False)},
}
