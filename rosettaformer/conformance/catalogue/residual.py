"""Defects of the residual connections: missing, doubled, or from another place."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import arithmetic, layers

from .defect import Defect
from .deviation import variance

__all__ = ["DEFECTS", "LAYERS", "SUBLAYERS"]

Array = np.ndarray
Replaces = Mapping[str, Callable]
SUBLAYERS = {"self_attention": "the self-attention", "cross_attention": "the cross-attention", "feed_forward": "the feed-forward"}
LAYERS = ("layers.encoder_layer", "layers.decoder_layer")


def _around(change: Callable[..., tuple[Array, Array]], *names: str) -> Replaces:
    """Other summands x and y around the sub-layers of these names, or all: a function of x, y, and what is normed of x where pre-norm."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, y_btd: Array, keep: Any) -> Array:
        if not names or name in names:
            x_btd, y_btd = change(x_btd, y_btd, lambda: layers.residual_in(parameters, config, name, x_btd))
        return original(parameters, config, name, x_btd, y_btd, keep)

    return {"layers.residual_out": altered}


def _each(words: str, change: Callable[..., tuple[Array, Array]]) -> dict[str, Replaces]:
    """The alteration around one sub-layer, as variants."""
    return {f"{words} {place} alone": _around(change, name) for name, place in SUBLAYERS.items()}


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
    """Pre-norm layers whose norm changes its input: a function of it and of epsilon."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, *rest: Any) -> Array:
        if config.norm_placement == "pre":
            x_btd = change(arithmetic.upcast_half(x_btd), config.epsilon).astype(x_btd.dtype, copy=False)
        return original(parameters, config, name, x_btd, *rest)

    return {"layers.residual_out": altered}


def _centred(x_btd: Array, epsilon: float) -> Array:
    return x_btd - arithmetic.mean(x_btd, -1)


def _standardised(x_btd: Array, epsilon: float) -> Array:
    return arithmetic.divide(_centred(x_btd, epsilon), np.sqrt(variance(x_btd) + x_btd.dtype.type(epsilon)))


def _weighted(of_x: Callable[[Any], float], of_y: Callable[[Any], float]) -> Replaces:
    """The sum of input and output with weights that are functions of the config."""

    def altered(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array, y_btd: Array, keep: Any) -> Array:
        number = x_btd.dtype.type
        return original(parameters, config, name, x_btd * number(of_x(config)), y_btd * number(of_y(config)), keep)

    return {"layers.residual_out": altered}


def _one(config: Any) -> float:
    return 1.0


def _depth(config: Any) -> int:
    return max(config.encoder_layers, config.decoder_layers)


def _from_the_layer(*names: str) -> Replaces:
    """The layers whose sub-layers of these names add the layer's own input."""

    def altered(original: Callable, parameters: Any, config: Any, x_btd: Array, *rest: Any, **options: Any) -> Array:
        residual_out = layers.residual_out

        def from_input(parameters: Any, config: Any, name: str, own_btd: Array, *others: Any) -> Array:
            return residual_out(parameters, config, name, x_btd if name in names else own_btd, *others)

        with mock.patch.object(layers, "residual_out", from_input):
            return original(parameters, config, x_btd, *rest, **options)

    return dict.fromkeys(LAYERS, altered)


_SUM: dict[str, Any] = {
    "torch": "x = self.norm(x + self.dropout(f(x)))  # pre-norm: x = x + self.dropout(f(self.norm(x)))",
    "tf": "x = self.norm(x + self.dropout(f(x), training=training))  # pre-norm: x = x + self.dropout(f(self.norm(x)))",
    "jax": "x = self.norm(x + self.dropout(f(x)))  # pre-norm: x = x + self.dropout(f(self.norm(x)))",
}
DEFECTS = (
    Defect(
        id="RES1",
        title="the residual is missing",
        component="encoder_layer",
        what="`norm(f(x))` instead of `norm(x + f(x))`, or `f(norm(x))` instead of `x + f(norm(x))`.",
        shows="What a token is reaches the next layer only through the attention. Any input shows it.",
        variants=_each("the residual is missing around", _missing)
        | {"a sub-layer's output is added to itself: f(x) + f(x) instead of x + f(x)": _around(_of_itself)},
        **_SUM,
        evidence="BitNet#32",
        replaces=_around(_missing),
    ),
    Defect(
        id="RES2",
        title="the residual is added twice",
        component="encoder_layer",
        what="`x + x + f(x)`: the sub-layer adds its input, and so does the layer around it.",
        shows="Each sub-layer weighs half as much as it should. Any input shows it.",
        variants=_each("the residual is added twice around", _doubled)
        | {"the sum is in place, so that it is added to itself: 2 (x + f(x))": _around(_both)},
        **_SUM,
        evidence="hiersumm#28",
        replaces=_around(_doubled),
    ),
    Defect(
        id="RES3",
        title="the residual comes from the normed input",
        component="encoder_layer",
        what="`norm(x) + f(norm(x))` instead of pre-norm's `x + f(norm(x))`: one name stands for x and its norm, or the norm "
        "writes its result where x is.",
        shows="The residual stream is normalised anew by every sub-layer. Any pre-norm input shows it; post-norm has no such place.",
        variants=_each("the residual comes from the normed input around", _normed)
        | {
            "the norm centres its input in place: the residual adds x - mean": _in_place(_centred),
            "the norm standardises its input in place, without scale and offset: the residual adds that": _in_place(_standardised),
        },
        torch="y = self.attention(self.norm(x)); x = x + self.dropout(y)  # not x = self.norm(x); x = x + self.attention(x)",
        tf="y = self.attention(self.norm(x)); x = x + self.dropout(y, training=training)  # not x = self.norm(x) first",
        jax="y = self.attention(self.norm(x)); x = x + self.dropout(y)  # not x = self.norm(x) first",
        evidence="faster-trajectory-transformer#3, RiNALMo#9, Knowledge-Tracing-SAINT#6",
        replaces=_around(_normed),
    ),
    Defect(
        id="RES4",
        title="the feed-forward's residual is the layer's input",
        component="encoder_layer",
        what="`norm(x + f(z))` with the layer's input x, instead of `norm(z + f(z))` with what the attention's sub-layer made of it, z.",
        shows="The attention reaches the output only through the feed-forward. Any input shows it.",
        variants={
            "the residual of every sub-layer is the layer's input": _from_the_layer("cross_attention", "feed_forward"),
            "the cross-attention's residual is the layer's input": _from_the_layer("cross_attention"),
        },
        torch="x = self.norm1(x + self.attention(x)); x = self.norm2(x + self.feed_forward(x))  # the second x is the first sum",
        tf="x = self.norm1(x + self.attention(x, x)); x = self.norm2(x + self.feed_forward(x))  # the second x is the first sum",
        jax="x = self.norm1(x + self.attention(x)); x = self.norm2(x + self.feed_forward(x))  # the second x is the first sum",
        evidence="transformer-tensorflow2.0#14, CapMarket#8",
        replaces=_from_the_layer("feed_forward"),
    ),
    Defect(
        id="RES5",
        title="the residual's sum is divided by sqrt(2)",
        component="encoder_layer",
        what="`(x + f(x)) / sqrt(2)`, or other weights of the two, instead of `x + f(x)`.",
        shows="With pre-norm all is smaller in each layer; post-norm hides a factor of the whole sum. Any input shows other weights.",
        variants={
            "the residual's sum is halved: the mean of x and f(x)": _weighted(lambda config: 0.5, lambda config: 0.5),
            "the residual is halved: x / 2 + f(x)": _weighted(lambda config: 0.5, _one),
            "the sub-layers' outputs are halved: x + f(x) / 2": _weighted(_one, lambda config: 0.5),
            "the sub-layers' outputs are doubled: x + 2 f(x)": _weighted(_one, lambda config: 2.0),
            "the sub-layers' outputs are subtracted: x - f(x)": _weighted(_one, lambda config: -1.0),
            "the residual is multiplied by sqrt(2)": _weighted(lambda config: 2**0.5, _one),
            "the residual is multiplied by (2 n)^(1/4) of n layers, as in DeepNorm": _weighted(
                lambda config: (2 * _depth(config)) ** 0.25, _one
            ),
            "the sub-layers' outputs are divided by sqrt(2 n) of n layers": _weighted(_one, lambda config: (2 * _depth(config)) ** -0.5),
        },
        **_SUM,
        evidence="derived, not reported; fairseq's convolutional models divide so, GPT-2 divides initial values by sqrt(2 n)",
        replaces=_weighted(lambda config: 0.5**0.5, lambda config: 0.5**0.5),
    ),
)
