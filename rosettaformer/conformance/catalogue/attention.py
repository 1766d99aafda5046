"""Defects of scaled dot-product attention."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import mask

from .alteration import Altered, Variants
from .combinators import on_arguments, on_call
from .dropout import drawn
from .softmax import inverted

Array = np.ndarray
ATTENTION = "attention.scaled_dot_product_attention"


def _tiled_mask(query_bthk: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    if mask_bhts is None:
        return {}
    batch, _, heads, _ = query_bthk.shape
    full = np.broadcast_to(mask_bhts, (batch, heads, *mask_bhts.shape[2:]))
    return {"mask_bhts": full.swapaxes(0, 1).reshape(full.shape)}


def _of_first_row(mask_bhts: Any) -> Any:
    return None if mask_bhts is None else np.broadcast_to(mask_bhts[:1], mask_bhts.shape)


def _first_head_alone(query_bthk: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    if mask_bhts is None or mask_bhts.shape[1] != 1:
        return {}
    return {"mask_bhts": mask_bhts | (np.arange(query_bthk.shape[2]) > 0)[:, None, None]}


def _tiled_heads(query_bthk: Array, key_bsgk: Array, value_bsge: Array, **others: Any) -> dict[str, Any]:
    repeats = query_bthk.shape[2] // key_bsgk.shape[2]
    return {"key_bsgk": np.tile(key_bsgk, (1, 1, repeats, 1)), "value_bsge": np.tile(value_bsge, (1, 1, repeats, 1))}


def _tiled(argument: str) -> Callable[..., dict[str, Any]]:
    """Tiles the heads of one argument and repeats those of the other."""

    def change(query_bthk: Array, key_bsgk: Array, value_bsge: Array, **others: Any) -> dict[str, Any]:
        repeats = query_bthk.shape[2] // key_bsgk.shape[2]
        repeated = {"key_bsgk": np.repeat(key_bsgk, repeats, axis=2), "value_bsge": np.repeat(value_bsge, repeats, axis=2)}
        return repeated | {argument: _tiled_heads(query_bthk, key_bsgk, value_bsge)[argument]}

    return change


def _regrouped(tiled: bool) -> Callable:
    """Merges the heads group by group. tiled: the group of query head i is `i mod g`."""

    def altered(original: Callable, query_bthk: Array, key_bsgk: Array, value_bsge: Array, *rest: Any, **options: Any) -> Any:
        heads, groups = query_bthk.shape[2], key_bsgk.shape[2]
        order = np.arange(heads).reshape(-1, groups).T.ravel() if tiled else np.arange(heads).reshape(groups, -1).T.ravel()
        own = _tiled_heads(query_bthk, key_bsgk, value_bsge) if tiled else {"key_bsgk": key_bsgk, "value_bsge": value_bsge}
        result = original(query_bthk, own["key_bsgk"], own["value_bsge"], *rest, **options)
        return (result[0][:, :, order], result[1][:, order]) if isinstance(result, tuple) else result[:, :, order]

    return altered


def _masks_added(query_bthk: Array, key_bsgk: Array, mask_bhts: Any, bias_bhts: Any, causal: bool, **others: Any) -> dict[str, Any]:
    if mask_bhts is None or not causal:
        return {}
    number = query_bthk.dtype.type
    lowest = number(ml_dtypes.finfo(query_bthk.dtype).min)
    hidden = (mask_bhts, mask.causal_mask(query_bthk.shape[1], key_bsgk.shape[1]))
    with np.errstate(over="ignore"):
        padding, future = (np.where(visible, number(0), lowest) for visible in hidden)
        added = padding + future if bias_bhts is None else padding + future + bias_bhts
    return {"mask_bhts": None, "bias_bhts": added, "causal": False}


def _causal_where_masked(masked: bool) -> Callable:
    """Is causal only with a mask, or only without one."""
    return on_call(lambda mask_bhts, causal, **others: {"causal": causal and (mask_bhts is not None) == masked})


def _always_dropped(query_bthk: Array, key_bsgk: Array, keep_bhts: Any, dropout_rate: float, **others: Any) -> dict[str, Any]:
    batch, target, heads, _ = query_bthk.shape
    return {} if keep_bhts is not None else {"keep_bhts": drawn((batch, heads, target, key_bsgk.shape[1]), dropout_rate)}


ALTERED: Altered = {
    "ATT7": {ATTENTION: on_arguments(mask_bhts=inverted)},
    "ATT11": {ATTENTION: on_call(_masks_added)},
    "ATT15": {ATTENTION: on_call(_tiled_mask)},
    "CAU4": {ATTENTION: _causal_where_masked(False)},
    "CAU9": {ATTENTION: _causal_where_masked(True)},
    "MHA10": {ATTENTION: on_call(_tiled_heads)},
    "DRP2": {ATTENTION: on_call(_always_dropped)},
    "ATT36": {ATTENTION: on_arguments(mask_bhts=_of_first_row)},
}
VARIANTS: Variants = {
    "MHA10": {
        "value heads, not key heads, are tiled, not repeated, for grouped queries": {ATTENTION: on_call(_tiled("value_bsge"))},
        "key heads, not value heads, are tiled, not repeated, for grouped queries": {ATTENTION: on_call(_tiled("key_bsgk"))},
        "query heads are split as (h/g, g) instead of (g, h/g), and merged group by group": {ATTENTION: _regrouped(True)},
        "the outputs of grouped heads are merged as (h/g, g) instead of (g, h/g)": {ATTENTION: _regrouped(False)},
    },
    "ATT36": {"the mask hides keys of the first head alone": {ATTENTION: on_call(_first_head_alone)}},
}
