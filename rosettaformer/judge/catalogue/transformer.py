"""Known bugs of the layer stacks."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from reference_numpy import normalization, stacks

from ..expectation.patching import patched
from .alteration import Altered, Variants, bound, on_arguments
from .residual import SUBLAYERS

STACKS = ("stacks.encoder", "stacks.decoder")
MODEL = "transformer.transformer"


def fresh_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    """Applies an untrained layer norm: scale 1, offset 0."""
    width = x.shape[-1]
    return normalization.layer_norm({"scale": np.ones(width, x.dtype), "offset": np.zeros(width, x.dtype)}, x, epsilon)


def other_final_norm(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> np.ndarray:
    """Drops a stack's final norm, or adds an untrained one if it has none."""
    y = original(parameters, config.replace(final_norm=False), *rest, **options)
    return y if config.final_norm else fresh_norm(y, config.epsilon)


def _one_layer_repeated(index: int) -> Callable:
    """Gives all layers of a stack the parameters of one layer."""

    def repeated(parameters: Any) -> Any:
        names = sorted(parameters["layers"], key=int)
        return dict(parameters) | {"layers": dict.fromkeys(names, parameters["layers"][names[index]])}

    return on_arguments(parameters=repeated)


def _parts_of_the_first(*names: str) -> Callable:
    """Gives all layers of a stack these parts (default: all norms) of the first layer."""

    def shared(parameters: Any) -> Any:
        first = parameters["layers"]["0"]
        own = {name: part for name, part in first.items() if name in names or (not names and name.endswith("_norm"))}
        return dict(parameters) | {"layers": {index: dict(layer) | own for index, layer in parameters["layers"].items()}}

    return on_arguments(parameters=shared)


def _final_norm(where: Callable[[int, int], tuple[bool, bool]]) -> dict[str, Callable]:
    """Applies the final norm before and after layers instead of at the end.

    where: (index, number of layers) -> whether to normalize before and after that layer.
    """

    def altered(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> np.ndarray:
        norm, depth, calls = stacks.final_norm, len(parameters["layers"]), count()

        def normed(layer: Callable, part: Any, config: Any, x: np.ndarray, *others: Any) -> np.ndarray:
            before, after = where(next(calls) % depth, depth)
            y = layer(part, config, norm(parameters, config, x) if before else x, *others)
            return norm(parameters, config, y) if after else y

        without = {"stacks.final_norm": lambda norm, parameters, config, x: x}
        with patched({"layers.encoder_layer": normed, "layers.decoder_layer": normed} | without):
            return original(parameters, config, *rest, **options)

    return dict.fromkeys(STACKS, altered)


def _with_its_input(original: Callable, *args: Any, **options: Any) -> np.ndarray:
    given = bound(original, *args, **options)
    return original(*args, **options) + given["x_bsd" if "x_bsd" in given else "x_btd"]


def _layers_of(to: str, other: str, *names: str) -> Callable:
    """Gives one stack's layers these parts of the other stack's layers at the same depth."""

    def shared(parameters: Any) -> Any:
        if not {to, other} <= parameters.keys():
            return parameters
        others = parameters[other]["layers"]
        own = {
            index: dict(layer) | {name: others[index][name] for name in names if index in others}
            for index, layer in parameters[to]["layers"].items()
        }
        return dict(parameters) | {to: dict(parameters[to]) | {"layers": own}}

    return on_arguments(parameters=shared)


ALTERED: Altered = {
    "NRM10": dict.fromkeys(STACKS, other_final_norm),
    "STR1": dict.fromkeys(STACKS, _one_layer_repeated(0)),
    "NRM22": _final_norm(lambda index, count: (index == count - 1, False)),
    "STR12": dict.fromkeys(STACKS, _with_its_input),
    "STR13": {MODEL: _layers_of("decoder", "encoder", "self_attention", "feed_forward")},
}
VARIANTS: Variants = {
    "STR1": {
        "every layer is the last layer": dict.fromkeys(STACKS, _one_layer_repeated(-1)),
        "every layer uses the first layer's norms": dict.fromkeys(STACKS, _parts_of_the_first()),
    }
    | {f"every layer uses {words} of layer 0": dict.fromkeys(STACKS, _parts_of_the_first(name)) for name, words in SUBLAYERS.items()},
    "NRM22": {
        "the final norm is applied before the first layer": _final_norm(lambda index, count: (index == 0, False)),
        "the final norm is applied before every layer": _final_norm(lambda index, count: (True, False)),
        "the final norm is applied after every layer": _final_norm(lambda index, count: (False, True)),
    },
    "STR13": {
        "the decoder shares its self-attention with the encoder": {MODEL: _layers_of("decoder", "encoder", "self_attention")},
        "the decoder shares its feed-forward with the encoder": {MODEL: _layers_of("decoder", "encoder", "feed_forward")},
        "the encoder uses the decoder's self-attention and feed-forward": {
            MODEL: _layers_of("encoder", "decoder", "self_attention", "feed_forward")
        },
    },
}
