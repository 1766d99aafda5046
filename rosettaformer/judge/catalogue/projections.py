"""Known bugs of the four projections, the number of heads and how heads are split and merged."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy.values import Drop, Heads

from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, bound, called, on_arguments
from .kernels import PROJECTIONS, SITES

PROJECTION, ATTENTION = "attention.projection", "attention.scaled_dot_product_attention"


def _shared(**others: str) -> Replaces:
    """Gives these projections another projection's parameters, if the shapes are equal."""

    def read(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        same = {
            name: parameters[other]
            for name, other in others.items()
            if parameters[name]["kernel"].shape == parameters[other]["kernel"].shape
        }
        return dict(parameters) | same

    return dict.fromkeys(SITES, on_arguments(parameters=read))


def _left_out(*names: str) -> Replaces:
    """Skips these projections: only splits or merges heads, if the widths allow it.

    Merged heads may have another width than the model.
    """
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
    """Attends with one head of width h k if masks and keys allow. wide: scales by sqrt(h k)."""

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        given = bound(original, *args, **options)
        query_bthk = given["query_bthk"]
        by_head = [x for name in ("mask_bhts", "bias_bhts", "keep_bhts") if (x := given[name]) is not None and x.shape[1] > 1]
        by_head += [given["sink_h"]] if given["sink_h"] is not None else []
        batch, target, heads, _ = query_bthk.shape
        if heads != given["key_bsgk"].shape[2] or by_head or not query_bthk.size:
            return original(*args, **options)
        one = {name: given[name].reshape(*given[name].shape[:2], 1, -1) for name in Heads._fields[:3]}
        if not wide:
            one["query_bthk"] = one["query_bthk"] * query_bthk.dtype.type(heads**0.5)

        def dropped(dropout: Callable, weights_bhts: Array, *drop: Any) -> Array:
            return dropout(np.repeat(weights_bhts, heads, axis=1), *drop)[:, :1]

        with patched({"dropout.dropout": dropped}):
            return called(original, **given | one).reshape(batch, target, heads, -1)

    return {ATTENTION: altered}


def _over_heads(original: Callable, heads: Heads, mask_bhts: Any = None, scores: Any = None, drop: Drop = Drop()) -> Array:
    """Makes the heads of a position attend to each other: `b t` as batch, `h` as positions."""
    if heads.query_bthk.shape[:3] != heads.key_bsgk.shape[:3] or drop.keep_bhts is not None:
        return original(heads, mask_bhts, scores, drop)
    one = Heads(*(x.reshape(-1, *x.shape[2:])[:, :, None] for x in heads[:3]))
    return original(one).reshape(*heads.query_bthk.shape[:3], -1)


def _with_query(original: Callable, parameters: Any, config: Any, query_btd: Array, *rest: Any, **options: Any) -> Array:
    return original(parameters, config, query_btd, *rest, **options) + query_btd


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
        "the key is projected with the query's kernel": _shared(key="query"),
        "the value is projected with the key's kernel": _shared(value="key"),
        "the key is projected with the value's kernel": _shared(key="value"),
        "query, key and value are all projected with the query's kernel": _shared(key="query", value="query"),
    },
    "MHA14": {f"the {name} projection is missing": _left_out(name) for name in ("query", "key", "value")},
    "MHA15": {
        "all four projections pass through ReLU": _active(*PROJECTIONS),
        "the output projection passes through ReLU": _active("output"),
    },
    "MHA16": {"attention runs as a single head of width h k, scaled by sqrt(k)": _one_head(wide=False)},
}
