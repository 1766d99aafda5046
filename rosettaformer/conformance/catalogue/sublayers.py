"""Defects of a layer's sub-layers: their order, one too few, one too many; and of the order of the layers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import layers

from ..reference.patching import patched
from .alteration import Altered, Array, Replaces, Variants, bound, on_call
from .residual import SUBLAYERS
from .transformer import STACKS

SELF, CROSS, FEED_FORWARD = SUBLAYERS
PATTERNS = ("layer_pattern", "rotary_pattern")


def _in_order(order: Callable[[list[str]], Sequence[str]], parallel: bool = False) -> Replaces:
    """Runs the sub-layers in another order, a function of the right one. parallel: each on the layer's input."""

    def sublayer(parameters: Any, config: Any, name: str, x_btd: Array, memory_bsd: Any, masks: Mapping[str, Any], *place: Any) -> Array:
        y_btd, (keep, position_bt, index) = layers.residual_in(parameters, config, name, x_btd), place
        if name == FEED_FORWARD:
            return layers._feed_forward(parameters, config, y_btd, keep)
        memory_bsd = memory_bsd if name == CROSS else y_btd
        of_self = {"layer": index, "position_bt": position_bt} if name == SELF else None
        settings = layers._attention_settings(config, name, name == SELF and "causal" in masks, keep, of_self)
        return layers._attend(parameters, config, name, y_btd, memory_bsd, masks[name], settings)

    def layer(
        parameters: Any, config: Any, x_btd: Array, memory_bsd: Any, masks: Mapping[str, Any], keep: Any, position_bt: Any, index: int
    ) -> Array:
        first_btd, keep = x_btd, keep or {}
        for name in order([name for name in SUBLAYERS if name != CROSS or memory_bsd is not None]):
            given = memory_bsd, masks, keep, position_bt, index
            y_btd = sublayer(parameters, config, name, first_btd if parallel else x_btd, *given)
            x_btd = layers.residual_out(parameters, config, name, x_btd, y_btd, keep)
        return x_btd

    def encoder_layer(
        original: Callable, parameters: Any, config: Any, x_btd: Array, mask_bhts: Any = None, keep: Any = None,
        position_bt: Any = None, index: int = 0,
    ) -> Array:  # fmt: skip
        return layer(parameters, config, x_btd, None, {SELF: mask_bhts}, keep, position_bt, index)

    def decoder_layer(
        original: Callable, parameters: Any, config: Any, x_btd: Array, memory_bsd: Any = None, self_mask_bhts: Any = None,
        cross_mask_bhts: Any = None, keep: Any = None, position_bt: Any = None, index: int = 0,
    ) -> Array:  # fmt: skip
        masks = {SELF: self_mask_bhts, CROSS: cross_mask_bhts, "causal": True}
        return layer(parameters, config, x_btd, memory_bsd, masks, keep, position_bt, index)

    return {"layers.encoder_layer": encoder_layer, "layers.decoder_layer": decoder_layer}


def _without(*left_out: str) -> Replaces:
    return _in_order(lambda names: [name for name in names if name not in left_out])


def _twice(twice: str) -> Replaces:
    return _in_order(lambda names: [name for name in names for _ in range(1 + (name == twice))])


def _idle(idle: str) -> Replaces:
    """Lets this sub-layer add nothing; its residual and its norm stay."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, y_btd: Array, keep: Any) -> Array:
        return original(parameters, config, name, x_btd, np.zeros_like(y_btd) if name == idle else y_btd, keep)

    return {"layers.residual_out": altered}


def _layers(order: Callable[[list[str]], Sequence[str]]) -> Replaces:
    """Runs other layers of the stacks, a function of the right ones."""

    def reordered(parameters: Any, config: Any, keep: Any = None, **others: Any) -> dict[str, Any]:
        chosen = order(sorted(parameters["layers"], key=int))
        counts = {name: len(chosen) for name in ("encoder_layers", "decoder_layers") if getattr(config, name)}
        own = {str(index): parameters["layers"][name] for index, name in enumerate(chosen)}
        # Each keeps its masks of dropout, its window and its rotation.
        masks = (keep or {}).get("layers", {})
        kept = {str(index): masks[name] for index, name in enumerate(chosen) if name in masks}
        patterns = {name: [turn[int(layer) % len(turn)] for layer in chosen] for name in PATTERNS if (turn := getattr(config, name))}
        return {
            "parameters": dict(parameters) | {"layers": own},
            "config": config.replace(**counts, **patterns),
            "keep": {**keep, "layers": kept} if masks else keep,
        }

    return dict.fromkeys(STACKS, on_call(reordered))


def _of_stack_input(original: Callable, *args: Any, **options: Any) -> Array:
    """Gives the self-attention of every layer the input of the first one."""
    given = bound(original, *args, **options)
    x_btd = given["x_bsd" if "x_bsd" in given else "x_btd"]

    def of_input(attend: Callable, own: Any, config: Any, name: str, query_btd: Array, memory_bsd: Array, *others: Any) -> Array:
        if name == SELF:
            query_btd = memory_bsd = layers.residual_in(own, config, name, x_btd)
        return attend(own, config, name, query_btd, memory_bsd, *others)

    with patched({"layers._attend": of_input}):
        return original(*args, **options)


ALTERED: Altered = {
    "STR4": _in_order(lambda names: [FEED_FORWARD, *names[:-1]]),
    "STR5": _without(CROSS),
    "STR6": _twice(FEED_FORWARD),
    "STR7": _layers(lambda names: names[::-1]),
    "STR8": _layers(lambda names: names[:1]),
    "STR11": dict.fromkeys(STACKS, _of_stack_input),
}
VARIANTS: Variants = {
    "STR4": {
        "the cross-attention comes before the self-attention": _in_order(
            lambda names: [*(name for name in names if name == CROSS), *(name for name in names if name != CROSS)]
        ),
        "the feed-forward comes before the cross-attention": _in_order(
            lambda names: [*(name for name in names if name != CROSS), *(name for name in names if name == CROSS)]
        ),
        "the sub-layers are parallel: all are given the layer's input": _in_order(list, parallel=True),
    },
    "STR5": {f"{words} is left out": _without(name) for name, words in SUBLAYERS.items() if name != CROSS}
    | {f"{words} adds nothing, and its norm is there": _idle(name) for name, words in SUBLAYERS.items()},
    "STR6": {f"{words} is applied twice": _twice(name) for name, words in SUBLAYERS.items() if name != FEED_FORWARD},
    "STR8": {
        "only the last layer runs, or each is given the stack's input (of two layers: the first one is left out)": _layers(
            lambda names: names[-1:]
        ),
        "the last layer is left out": _layers(lambda names: names[:-1]),
        "the first layer is left out": _layers(lambda names: names[1:]),
        "the layers run twice": _layers(lambda names: names * 2),
    },
}
