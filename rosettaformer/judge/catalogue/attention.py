"""Known bugs of scaled dot-product attention; soft caps and scales of all logits."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import arithmetic, mask, softmax
from reference_numpy.scores import Scores
from reference_numpy.values import Heads

from ..expectation.patching import patched, within
from .alteration import Altered, Array, Replaces, Variants, bound, called, on_arguments, on_call
from .dropout import drawn
from .softmax import inverted

ATTENTION, CAP, HEAD = "attention.scaled_dot_product_attention", "softmax.soft_cap", "embedding.logits"


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
    """Tiles the heads of one argument and repeats those of the other argument."""

    def change(query_bthk: Array, key_bsgk: Array, value_bsge: Array, **others: Any) -> dict[str, Any]:
        repeats = query_bthk.shape[2] // key_bsgk.shape[2]
        repeated = {"key_bsgk": np.repeat(key_bsgk, repeats, axis=2), "value_bsge": np.repeat(value_bsge, repeats, axis=2)}
        return repeated | {argument: _tiled_heads(query_bthk, key_bsgk, value_bsge)[argument]}

    return change


def _regrouped(tiled: bool) -> Replaces:
    """Merges the heads group by group. tiled: query head i is in group `i mod g`."""

    def altered(original: Callable, heads: Heads, *rest: Any, **options: Any) -> Array:
        count, groups = heads.query_bthk.shape[2], heads.key_bsgk.shape[2]
        order = np.arange(count).reshape(-1, groups).T.ravel() if tiled else np.arange(count).reshape(groups, -1).T.ravel()
        own = heads._replace(**_tiled_heads(*heads[:3])) if tiled else heads

        def dropped(dropout: Callable, weights_bhts: Array, *drop: Any) -> Array:
            return dropout(weights_bhts[:, order], *drop)[:, np.argsort(order)]

        with patched({"dropout.dropout": dropped}):
            return original(own, *rest, **options)[:, :, order]

    return {ATTENTION: altered}


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
    """Applies the causal mask only with a padding mask (masked), or only without one."""
    return on_call(lambda mask_bhts, causal, **others: {"causal": causal and (mask_bhts is not None) == masked})


def _always_dropped(query_bthk: Array, key_bsgk: Array, keep_bhts: Any, dropout_rate: float, **others: Any) -> dict[str, Any]:
    batch, target, heads, _ = query_bthk.shape
    return {} if keep_bhts is not None else {"keep_bhts": drawn((batch, heads, target, key_bsgk.shape[1]), dropout_rate)}


def _curve(curve: Callable[[Array, Any], Array]) -> Replaces:
    """Replaces the soft cap by another function of the logits and the cap."""

    def altered(original: Callable, x: Array, cap: float) -> Array:
        wide = arithmetic.upcast_half(x)
        return curve(wide, wide.dtype.type(cap)).astype(x.dtype, copy=False)

    return {CAP: altered}


def _after_the_mask(original: Callable, *args: Any, **options: Any) -> Any:
    given = bound(original, *args, **options)
    cap = given["cap"]

    def capped(probabilities: Callable, logits: Array, mask: Any = None) -> Array:
        hidden = logits if mask is None else np.where(mask, logits, logits.dtype.type(-np.inf))
        return probabilities(hidden if cap is None else softmax.soft_cap(hidden, cap), mask if cap is None else None)

    with patched({"softmax.softmax": capped}):
        return called(original, **given | {"cap": None})


def _before_the_scale(original: Callable, query_bthk: Array, key_bsgk: Array, mask_bhts: Any, scores: Scores, *sink: Any) -> Array:
    if scores.cap is None:
        return original(query_bthk, key_bsgk, mask_bhts, scores, *sink)
    scale = query_bthk.shape[3] ** -0.5 if scores.scale is None else scores.scale

    def scaled(cap: Callable, x: Array, most: float) -> Array:
        capped = cap(x, most)
        return capped * capped.dtype.type(scale)

    with patched({CAP: scaled}):
        return original(query_bthk, key_bsgk, mask_bhts, scores._replace(scale=1.0), *sink)


def _score_scale(change: Callable[[float, int], float]) -> Replaces:
    """Replaces a scale set by the config by a function of it and k."""

    def other(scale: Any, query_bthk: Array, **others: Any) -> dict[str, Any]:
        return {} if scale is None else {"scale": change(scale, query_bthk.shape[3])}

    return {ATTENTION: on_call(other)}


def _cap_before_the_scale(original: Callable, parameters: Any, x_btd: Array, scale: float = 1.0, cap: Any = None) -> Array:
    if cap is None:
        return original(parameters, x_btd, scale, cap)
    capped_btv = original(parameters, x_btd, 1.0, cap)
    return (arithmetic.upcast_half(capped_btv) * arithmetic.upcast_half(capped_btv).dtype.type(scale)).astype(x_btd.dtype, copy=False)


_UNBOUND = _curve(lambda x, cap: x * arithmetic.tanh(x / cap))


ALTERED: Altered = {
    "ATT7": {ATTENTION: on_arguments(mask_bhts=inverted)},
    "ATT11": {ATTENTION: on_call(_masks_added)},
    "ATT15": {ATTENTION: on_call(_tiled_mask)},
    "CAU4": {ATTENTION: _causal_where_masked(False)},
    "CAU9": {ATTENTION: _causal_where_masked(True)},
    "MHA10": {ATTENTION: on_call(_tiled_heads)},
    "DRP2": {ATTENTION: on_call(_always_dropped)},
    "ATT36": {ATTENTION: on_arguments(mask_bhts=_of_first_row)},
    "CAP1": {ATTENTION: on_arguments(cap=None)},
    "CAP2": {ATTENTION: _after_the_mask},
    "CAP3": _UNBOUND,
    "CAP4": {"attention.attention_weights": _before_the_scale},
    "CAP5": {HEAD: on_arguments(cap=None)},
    "CAP6": {HEAD: on_arguments(scale=1.0)},
    "ATT37": {ATTENTION: on_arguments(scale=None)},
}
VARIANTS: Variants = {
    "MHA10": {
        "grouped-query value heads (not key heads) are tiled instead of repeated": {ATTENTION: on_call(_tiled("value_bsge"))},
        "grouped-query key heads (not value heads) are tiled instead of repeated": {ATTENTION: on_call(_tiled("key_bsgk"))},
        "grouped query heads are split as (h/g, g) instead of (g, h/g), and merged per group": _regrouped(True),
        "grouped heads' outputs are merged as (h/g, g) instead of (g, h/g)": _regrouped(False),
    },
    "ATT36": {"the mask applies only to the first head": {ATTENTION: on_call(_first_head_alone)}},
    "CAP3": {
        "the soft cap is tanh(x / cap), not multiplied by the cap": _curve(lambda x, cap: arithmetic.tanh(x / cap)),
        "the soft cap is cap tanh(x), not divided by the cap": _curve(lambda x, cap: cap * arithmetic.tanh(x)),
        "the soft cap clips to [-cap, cap] instead of using tanh": _curve(lambda x, cap: np.clip(x, -cap, cap)),
        "the soft cap is x tanh(x / cap) only on the attention logits": {ATTENTION: within(_UNBOUND)},
        "the soft cap is x tanh(x / cap) only on the output logits": {HEAD: within(_UNBOUND)},
    },
    "CAP5": {"the output logits are capped before they are scaled": {HEAD: _cap_before_the_scale}},
    "CAP6": {"the output logits are divided by their scale": {HEAD: on_arguments(scale=lambda scale: 1 / scale)}},
    "ATT37": {
        "attention is scaled by both the config's scale and 1 / sqrt(k)": _score_scale(lambda scale, size: scale * size**-0.5),
        "the attention logits are divided by the config's scale": _score_scale(lambda scale, size: 1 / scale),
        "the attention scale lacks its square root": _score_scale(lambda scale, size: scale * scale),
    },
}
