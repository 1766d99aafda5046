"""Known bugs of the residual connections: missing, doubled, or from the wrong place."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, layers

from ..expectation.patching import patched
from ..expectation.patching import within as inside
from .alteration import Altered, Array, Replaces, Variants, on_call
from .deviation import variance

SUBLAYERS = {"self_attention": "the self-attention", "cross_attention": "the cross-attention", "feed_forward": "the feed-forward"}
LAYERS = ("layers.encoder_layer", "layers.decoder_layer")


def _around(change: Callable[..., tuple[Array, Array]], *names: str) -> Replaces:
    """Changes the residual sum's terms around these sub-layers (default: all).

    change: a function of x, y and a function that returns the pre-norm's output.
    """

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, y_btd: Array, keep: Any) -> Array:
        if not names or name in names:
            x_btd, y_btd = change(x_btd, y_btd, lambda: layers.residual_in(parameters, config, name, x_btd))
        return original(parameters, config, name, x_btd, y_btd, keep)

    return {"layers.residual_out": altered}


def _each(words: str, change: Callable[..., tuple[Array, Array]]) -> dict[str, Replaces]:
    """Returns one variant per sub-layer, with the alteration only around it."""
    return {f"{words} {place}": _around(change, name) for name, place in SUBLAYERS.items()}


def _missing(x_btd: Array, y_btd: Array, normed: Callable) -> tuple[Array, Array]:
    return np.zeros_like(x_btd), y_btd


def _doubled(x_btd: Array, y_btd: Array, normed: Callable) -> tuple[Array, Array]:
    return x_btd + x_btd, y_btd


def _of_itself(x_btd: Array, y_btd: Array, normed: Callable) -> tuple[Array, Array]:
    return y_btd, y_btd


def _normed(x_btd: Array, y_btd: Array, normed: Callable) -> tuple[Array, Array]:
    return normed(), y_btd


def _both(x_btd: Array, y_btd: Array, normed: Callable) -> tuple[Array, Array]:
    return x_btd + y_btd, x_btd + y_btd


def _in_place(change: Callable[[Array, float], Array]) -> Replaces:
    """Makes pre-norm layer norms change their input in place, by a function of it and epsilon."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, *rest: Any) -> Array:
        if config.norm_placement == "pre" and config.norm == "layer":
            x_btd = change(arithmetic.upcast_half(x_btd), config.epsilon).astype(x_btd.dtype, copy=False)
        return original(parameters, config, name, x_btd, *rest)

    return {"layers.residual_out": altered}


def _centred(x_btd: Array, epsilon: float) -> Array:
    return x_btd - arithmetic.mean(x_btd, -1)


def _standardised(x_btd: Array, epsilon: float) -> Array:
    return arithmetic.divide(_centred(x_btd, epsilon), np.sqrt(variance(x_btd) + x_btd.dtype.type(epsilon)))


def _weighted(of_x: Callable[[Any], float], of_y: Callable[[Any], float]) -> Replaces:
    """Weights the terms of the residual sum by functions of the config."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, y_btd: Array, keep: Any) -> Array:
        number = x_btd.dtype.type
        return original(parameters, config, name, x_btd * number(of_x(config)), y_btd * number(of_y(config)), keep)

    return {"layers.residual_out": altered}


def _one(config: Any) -> float:
    return 1.0


def _depth(config: Any) -> int:
    return max(config.encoder_layers, config.decoder_layers)


def from_input(function: str, argument: str, *names: str, within: str = "") -> Callable:
    """Passes the layer's own input as this argument of the function, for these sub-layers (default:
    all).

    within: only for calls inside this function; empty for any.
    """

    def altered(original: Callable, parameters: Any, config: Any, x_btd: Array, *rest: Any, **options: Any) -> Array:
        other = {function: on_call(lambda **given: {argument: x_btd} if not names or given["name"] in names else {})}
        with patched({within: inside(other)} if within else other):
            return original(parameters, config, x_btd, *rest, **options)

    return altered


def _from_the_layer(*names: str) -> Replaces:
    """Adds the layer's own input as the residual of these sub-layers."""
    return dict.fromkeys(LAYERS, from_input("layers.residual_out", "x_btd", *names))


ALTERED: Altered = {
    "RES1": _around(_missing),
    "RES2": _around(_doubled),
    "RES3": _around(_normed),
    "RES4": _from_the_layer("feed_forward"),
    "RES5": _weighted(lambda config: 0.5**0.5, lambda config: 0.5**0.5),
}
VARIANTS: Variants = {
    "RES1": _each("the residual is missing only around", _missing)
    | {"a sub-layer's output is added to itself: f(x) + f(x) instead of x + f(x)": _around(_of_itself)},
    "RES2": _each("the residual is added twice only around", _doubled)
    | {"the residual sum is in place and added to itself: 2 (x + f(x))": _around(_both)},
    "RES3": _each("the residual is taken after the norm only around", _normed)
    | {
        "the norm centers its input in place, so the residual adds x - mean": _in_place(_centred),
        "the norm standardizes its input in place, so the residual adds (x - mean) / std": _in_place(_standardised),
    },
    "RES4": {
        "the residual of every sub-layer is the layer's input": _from_the_layer("cross_attention", "feed_forward"),
        "the cross-attention's residual is the layer's input": _from_the_layer("cross_attention"),
    },
    "RES5": {
        "the residual sum is halved: (x + f(x)) / 2": _weighted(lambda config: 0.5, lambda config: 0.5),
        "the residual is halved: x / 2 + f(x)": _weighted(lambda config: 0.5, _one),
        "the sub-layers' outputs are halved: x + f(x) / 2": _weighted(_one, lambda config: 0.5),
        "the sub-layers' outputs are doubled: x + 2 f(x)": _weighted(_one, lambda config: 2.0),
        "the sub-layers' outputs are subtracted: x - f(x)": _weighted(_one, lambda config: -1.0),
        "the residual is multiplied by sqrt(2)": _weighted(lambda config: 2**0.5, _one),
        "the residual is multiplied by (2 n)^(1/4) with n layers, as in DeepNorm": _weighted(
            lambda config: (2 * _depth(config)) ** 0.25, _one
        ),
        "the sub-layers' outputs are divided by sqrt(2 n) with n layers": _weighted(_one, lambda config: (2 * _depth(config)) ** -0.5),
    },
}
