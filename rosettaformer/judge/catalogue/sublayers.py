"""Known bugs of sub-layers (wrong order, missing, repeated) and of the order of layers."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import layers
from reference_numpy.scores import Scores
from reference_numpy.values import Attending

from ..expectation.patching import patched
from .alteration import Altered, Array, Replaces, Variants, bound, on_call
from .residual import SUBLAYERS
from .transformer import STACKS

SELF, CROSS, FEED_FORWARD = SUBLAYERS
PATTERNS = ("layer_pattern", "rotary_pattern")


def _in_order(order: Callable[[list[str]], Sequence[str]], parallel: bool | None = None) -> Replaces:
    """Changes the order of the sub-layers. parallel: whether all run on the layer's input; default, the config's choice."""

    def layer(
        parameters: Any, config: Any, x_btd: Array, keep: Any, attentions: Mapping[str, Callable[[Array], Array]], **routed: Any
    ) -> Array:
        first_btd, keep, beside = x_btd, keep or {}, config.parallel if parallel is None else parallel
        network = {FEED_FORWARD: lambda y_btd: layers.network(parameters, config, y_btd, keep, **routed)}
        for name in order([name for name in SUBLAYERS if name in attentions or name == FEED_FORWARD]):
            in_btd = layers.residual_in(parameters, config, name, first_btd if beside else x_btd)
            y_btd = {**attentions, **network}[name](in_btd)
            x_btd = layers.residual_out(parameters, config, name, x_btd, y_btd, keep)
        return x_btd

    def encoder_layer(
        original: Callable, parameters: Any, config: Any, x_btd: Array, attending: Attending = Attending(), keep: Any = None
    ) -> Array:
        attend = functools.partial(_self_attention, parameters, config, attending, keep)
        return layer(parameters, config, x_btd, keep, {SELF: attend})

    def decoder_layer(
        original: Callable, parameters: Any, config: Any, x_btd: Array, memory: Any = None,
        attending: Attending = Attending(scores=Scores(causal=True)), keep: Any = None, **routed: Any,
    ) -> Array:  # fmt: skip
        attentions: dict[str, Callable[[Array], Array]] = {SELF: functools.partial(_self_attention, parameters, config, attending, keep)}
        if memory is not None:
            attentions[CROSS] = lambda y_btd: layers.cross_attention(parameters, config, y_btd, memory, keep)
        return layer(parameters, config, x_btd, keep, attentions, **routed)

    return {"layers.encoder_layer": encoder_layer, "layers.decoder_layer": decoder_layer}


def _self_attention(parameters: Any, config: Any, attending: Attending, keep: Any, y_btd: Array) -> Array:
    return layers.self_attention(parameters, config, y_btd, attending, keep)


def _without(*left_out: str) -> Replaces:
    return _in_order(lambda names: [name for name in names if name not in left_out])


def _twice(twice: str) -> Replaces:
    return _in_order(lambda names: [name for name in names for _ in range(1 + (name == twice))])


def _idle(idle: str) -> Replaces:
    """Zeroes this sub-layer's output; its residual and its norm stay."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, y_btd: Array, keep: Any) -> Array:
        return original(parameters, config, name, x_btd, np.zeros_like(y_btd) if name == idle else y_btd, keep)

    return {"layers.residual_out": altered}


def _layers(order: Callable[[list[str]], Sequence[str]]) -> Replaces:
    """Runs other layers of the stacks: a function of the correct ones."""

    def reordered(parameters: Any, config: Any, keep: Any = None, **others: Any) -> dict[str, Any]:
        chosen = order(sorted(parameters["layers"], key=int))
        counts = {name: len(chosen) for name in ("encoder_layers", "decoder_layers") if getattr(config, name)}
        own = {str(index): parameters["layers"][name] for index, name in enumerate(chosen)}
        # Each layer keeps its dropout masks, window and rotation.
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
    """Gives every layer's self-attention the first layer's input."""
    given = bound(original, *args, **options)
    x_btd = given["x_bsd" if "x_bsd" in given else "x_btd"]

    def of_input(attend: Callable, own: Any, config: Any, y_btd: Array, *others: Any) -> Array:
        return attend(own, config, layers.residual_in(own, config, SELF, x_btd), *others)

    with patched({"layers.self_attention": of_input}):
        return original(*args, **options)


ALTERED: Altered = {
    "STR4": _in_order(lambda names: [FEED_FORWARD, *names[:-1]]),
    "STR5": _without(CROSS),
    "STR6": _twice(FEED_FORWARD),
    "STR7": _layers(lambda names: names[::-1]),
    "STR8": _layers(lambda names: names[:1]),
    "STR14": _in_order(list, parallel=False),
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
        "the sub-layers run in parallel on the layer's input": _in_order(list, parallel=True),
    },
    "STR5": {f"{words} is skipped": _without(name) for name, words in SUBLAYERS.items() if name != CROSS}
    | {f"{words} adds nothing, but its norm is applied": _idle(name) for name, words in SUBLAYERS.items()},
    "STR6": {f"{words} is applied twice": _twice(name) for name, words in SUBLAYERS.items() if name != FEED_FORWARD},
    "STR8": {
        "only the last layer runs (with two layers: the first one is skipped)": _layers(lambda names: names[-1:]),
        "the last layer is skipped": _layers(lambda names: names[:-1]),
        "the first layer is skipped": _layers(lambda names: names[1:]),
        "the layers run twice": _layers(lambda names: names * 2),
    },
}
