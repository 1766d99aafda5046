"""Defects of the window of local layers: how many keys it holds, and which layers have one."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .alteration import Altered, Array, Replaces, Variants, on_arguments, on_call, on_result

MASK, SETTINGS, KIND = "mask.window_mask", "attention._settings", "config.TransformerConfig.layer_kind"
OTHER = {"local": "global", "global": "local"}


def _of_keys(count: Callable[[int], int]) -> Replaces:
    """A window of another number of keys, a function of the right one."""
    return {MASK: on_arguments(window=count)}


def _in_steps(count: Callable[[int], int]) -> Replaces:
    """A window of another number of keys where there are keys before the first query."""

    def change(target_length: int, source_length: int, window: int) -> dict[str, Any]:
        return {"window": count(window)} if target_length < source_length else {}

    return {MASK: on_call(change)}


def _top_left(original: Callable, target_length: int, source_length: int, window: int) -> Array:
    longest = max(target_length, source_length)
    return original(longest, longest, window)[:, :, :target_length, :source_length]


def _everywhere(config: Any, layer: Any) -> dict[str, Any]:
    local = config is not None and layer is not None and "local" in config.layer_pattern
    return {"config": config.replace(layer_pattern=("local",))} if local else {}


def _across(config: Any, layer: Any) -> dict[str, Any]:
    local = config is not None and layer is None and "local" in config.layer_pattern
    return {"layer": config.layer_pattern.index("local")} if local else {}


def _other_kind(original: Callable, config: Any, layer: int) -> Any:
    differ = len(set(config.layer_pattern)) > 1
    return original(config.replace(layer_pattern=tuple(map(OTHER.get, config.layer_pattern))) if differ else config, layer)


def _other_window(original: Callable, config: Any, layer: int) -> Any:
    return original(config, layer)._replace(window=_other_kind(original, config, layer).window)


ALTERED: Altered = {
    "WIN1": _of_keys(lambda window: window + 1),
    "WIN2": {MASK: on_result(np.ones_like)},
    "WIN3": {SETTINGS: on_call(_everywhere)},
    "WIN4": {KIND: _other_window},
    "WIN5": {MASK: _top_left},
}
VARIANTS: Variants = {
    "WIN1": {
        "the window holds a key too few": _of_keys(lambda window: max(window - 1, 1)),
        "half of the window lies on either side of the query": _of_keys(lambda window: window // 2 + 1),
        "in steps of decoding alone the window holds a key too many": _in_steps(lambda window: window + 1),
        "in steps of decoding alone the window holds a key too few": _in_steps(lambda window: max(window - 1, 1)),
    },
    "WIN3": {"the cross-attention has the window, too": {SETTINGS: on_call(_across)}},
    "WIN4": {"local and global layers are exchanged, their rotations, too": {KIND: _other_kind}},
}
