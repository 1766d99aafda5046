"""Defects of the norms of a layer: their places, and their order."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import layers, normalization

from .alteration import Altered, Replaces, Variants
from .combinators import on_call
from .residual import LAYERS, SUBLAYERS, from_input

Array = np.ndarray
IN, OUT = "layers.residual_in", "layers.residual_out"


def _placed(before: str, after: str, *names: str) -> Replaces:
    """Normalises before these sub-layers, or all, by one placement and after them by another."""

    def under(placement: str) -> Callable:
        return on_call(lambda config, name, **others: {} if names and name not in names else {"config": _with(config, placement)})

    return {IN: under(before), OUT: under(after)}


def _with(config: Any, placement: str) -> Any:
    return config.replace(norm_placement=placement)


def _renamed(**others: str) -> Replaces:
    """Gives the norms of these sub-layers the parameters of others, if the layer has them."""

    def read(parameters: Any, name: str, **given: Any) -> dict[str, Any]:
        other = f"{others.get(name, name)}_norm"
        return {"parameters": dict(parameters) | {f"{name}_norm": parameters[other]}} if other in parameters else {}

    return dict.fromkeys((IN, OUT), on_call(read))


def _norm_of(original: Callable, parameters: Any, config: Any, name: str, *rest: Any) -> Array:
    """Normalises the result once more if it ends in a norm."""
    y_btd = original(parameters, config, name, *rest)
    ends = config.norm_placement == ("post" if len(rest) > 1 else "pre")
    return normalization.norm(parameters[f"{name}_norm"], config, y_btd) if ends else y_btd


def _normed_memory(original: Callable, parameters: Any, config: Any, name: str, query_btd: Array, memory_bsd: Array, *rest: Any) -> Array:
    if name == "cross_attention" and config.norm_placement == "pre":
        memory_bsd = layers.residual_in(parameters, config, name, memory_bsd)
    return original(parameters, config, name, query_btd, memory_bsd, *rest)


ALTERED: Altered = {
    "NRM16": _placed("post", "pre"),
    "NRM17": _renamed(feed_forward="self_attention"),
    "NRM18": dict.fromkeys((IN, OUT), _norm_of),
    "NRM19": dict.fromkeys(LAYERS, from_input("layers._attend", "memory_bsd", "self_attention")),
}
VARIANTS: Variants = {
    "NRM16": {f"the norm of {words} is missing": _placed("post", "pre", name) for name, words in SUBLAYERS.items()}
    | {"only the feed-forward has a norm": _placed("post", "pre", "self_attention", "cross_attention")},
    "NRM17": {
        "the feed-forward's norm serves the self-attention, too": _renamed(self_attention="feed_forward"),
        "the self-attention's norm serves every sub-layer": _renamed(cross_attention="self_attention", feed_forward="self_attention"),
        "the self-attention's norm serves the cross-attention, too": _renamed(cross_attention="self_attention"),
        "the norms of self-attention and feed-forward are exchanged": _renamed(
            self_attention="feed_forward", feed_forward="self_attention"
        ),
        "the norms of cross-attention and feed-forward are exchanged": _renamed(
            cross_attention="feed_forward", feed_forward="cross_attention"
        ),
        "the norms of self- and cross-attention are exchanged": _renamed(
            self_attention="cross_attention", cross_attention="self_attention"
        ),
    },
    "NRM18": {"a norm stands before and after every sub-layer": _placed("pre", "post")},
    "NRM19": {"the memory is normed with the cross-attention's norm": {"layers._attend": _normed_memory}},
}
