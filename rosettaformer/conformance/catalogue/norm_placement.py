"""Defects of where the norms of a layer stand, and of which is which."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import layers, normalization

from .defect import LOADED, Defect, on_call
from .residual import LAYERS, SUBLAYERS

__all__ = ["DEFECTS"]

Array = np.ndarray
Replaces = Mapping[str, Callable]
IN, OUT = "layers.residual_in", "layers.residual_out"


def _placed(before: str, after: str, *names: str) -> Replaces:
    """The norm before the sub-layers of these names, or all, as with one placement, and that after them as with another."""

    def under(placement: str) -> Callable:
        return on_call(lambda config, name, **others: {} if names and name not in names else {"config": _with(config, placement)})

    return {IN: under(before), OUT: under(after)}


def _with(config: Any, placement: str) -> Any:
    return config.replace(norm_placement=placement)


def _renamed(**others: str) -> Replaces:
    """The norms of these sub-layers with the parameters of others', where the layer has them."""

    def read(parameters: Any, name: str, **given: Any) -> dict[str, Any]:
        other = f"{others.get(name, name)}_norm"
        return {"parameters": dict(parameters) | {f"{name}_norm": parameters[other]}} if other in parameters else {}

    return dict.fromkeys((IN, OUT), on_call(read))


def _norm_of(original: Callable, parameters: Any, config: Any, name: str, *rest: Any) -> Array:
    """What the function returns, and once more its norm, where it ends in one."""
    y_btd = original(parameters, config, name, *rest)
    ends = config.norm_placement == ("post" if len(rest) > 1 else "pre")
    return normalization.layer_norm(parameters[f"{name}_norm"], y_btd, config.epsilon) if ends else y_btd


def _only_query(original: Callable, parameters: Any, config: Any, x_btd: Array, *rest: Any, **options: Any) -> Array:
    attend = layers._attend

    def of_input(parameters: Any, config: Any, name: str, query_btd: Array, memory_bsd: Array, *others: Any) -> Array:
        return attend(parameters, config, name, query_btd, x_btd if name == "self_attention" else memory_bsd, *others)

    with mock.patch.object(layers, "_attend", of_input):
        return original(parameters, config, x_btd, *rest, **options)


def _normed_memory(original: Callable, parameters: Any, config: Any, name: str, query_btd: Array, memory_bsd: Array, *rest: Any) -> Array:
    if name == "cross_attention" and config.norm_placement == "pre":
        memory_bsd = layers.residual_in(parameters, config, name, memory_bsd)
    return original(parameters, config, name, query_btd, memory_bsd, *rest)


_LAYER: dict[str, Any] = {
    "torch": "x = self.norm1(x + self.attention(x)); x = self.norm2(x + self.feed_forward(x))  # pre: x = x + f(norm(x)); two norms",
    "tf": "x = self.norm1(x + self.attention(x, x)); x = self.norm2(x + self.feed_forward(x))  # pre: x = x + f(norm(x)); two norms",
    "jax": "x = self.norm1(x + self.attention(x)); x = self.norm2(x + self.feed_forward(x))  # pre: x = x + f(norm(x)); two norms",
}
DEFECTS = (
    Defect(
        id="NRM16",
        title="the norms of the layers are missing",
        component="encoder_layer",
        what="`x + f(x)` instead of `norm(x + f(x))` or `x + f(norm(x))`.",
        shows="The residual stream is never normalised. Any input shows it.",
        variants={f"the norm of {words} is missing": _placed("post", "pre", name) for name, words in SUBLAYERS.items()}
        | {"only the feed-forward has a norm": _placed("post", "pre", "self_attention", "cross_attention")},
        **_LAYER,
        evidence="allennlp#640",
        replaces=_placed("post", "pre"),
    ),
    Defect(
        id="NRM17",
        title="the self-attention's norm serves the feed-forward, too",
        component="encoder_layer",
        what="Scale and offset of one norm of the layer are used at two places, or those of two are exchanged.",
        shows="Nothing in a fresh model, whose norms are equal; trained scales and offsets show it.",
        elsewhere=LOADED,
        variants={
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
        **_LAYER,
        evidence="OLMo#222, mmdit#4",
        replaces=_renamed(feed_forward="self_attention"),
    ),
    Defect(
        id="NRM18",
        title="each norm of the layers is applied twice",
        component="encoder_layer",
        what="`norm(norm(x))` with one norm's scale and offset, instead of `norm(x)`.",
        shows="Nothing in a fresh model, but for epsilon; trained scales and offsets show it.",
        variants={"a norm stands before and after every sub-layer": _placed("pre", "post")},
        **_LAYER,
        evidence="llama.cpp#1925",
        replaces=dict.fromkeys((IN, OUT), _norm_of),
    ),
    Defect(
        id="NRM19",
        title="only the query is normed",
        component="encoder_layer",
        what="`attention(norm(x), x, x)` instead of pre-norm's `attention(norm(x), norm(x), norm(x))`.",
        shows="Keys and values grow with the residual stream. Any pre-norm input shows it; post-norm has no such place.",
        variants={"the memory is normed with the cross-attention's norm": {"layers._attend": _normed_memory}},
        torch="y = self.norm(x); x = x + self.attention(y, y, y)  # the memory of a cross-attention is not normed here",
        tf="y = self.norm(x); x = x + self.attention(query=y, value=y)  # the memory of a cross-attention is not normed here",
        jax="y = self.norm(x); x = x + self.attention(y, y, y)  # the memory of a cross-attention is not normed here",
        evidence="jadore801120#142",
        replaces=dict.fromkeys(LAYERS, _only_query),
    ),
)
