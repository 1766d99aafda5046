"""Defects of the stacks."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import layers, normalization, stacks

from .defect import CONFIGURED, LOADED, Defect, bound, on_arguments
from .residual import SUBLAYERS

__all__ = ["DEFECTS", "STACKS", "fresh_norm", "other_final_norm"]


STACKS = ("stacks.encoder", "stacks.decoder")
MODEL = "transformer.transformer"


def fresh_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    """A norm as it is before any training: scale 1, offset 0."""
    width = x.shape[-1]
    return normalization.layer_norm({"scale": np.ones(width, x.dtype), "offset": np.zeros(width, x.dtype)}, x, epsilon)


def other_final_norm(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> np.ndarray:
    """The stack without its final norm, or with a fresh one where it has none."""
    y = original(parameters, config.replace(final_norm=False), *rest, **options)
    return y if config.final_norm else fresh_norm(y, config.epsilon)


def _one_layer_repeated(index: int) -> Callable:
    """The stack all of whose layers have the parameters of one."""

    def repeated(parameters: Any) -> Any:
        names = sorted(parameters["layers"], key=int)
        return dict(parameters) | {"layers": dict.fromkeys(names, parameters["layers"][names[index]])}

    return on_arguments(parameters=repeated)


def _parts_of_the_first(*names: str) -> Callable:
    """The stack in all of whose layers these parts, or all norms, are those of the first one."""

    def shared(parameters: Any) -> Any:
        first = parameters["layers"]["0"]
        own = {name: part for name, part in first.items() if name in names or (not names and name.endswith("_norm"))}
        return dict(parameters) | {"layers": {index: dict(layer) | own for index, layer in parameters["layers"].items()}}

    return on_arguments(parameters=shared)


def _final_norm(where: Callable[[int, int], tuple[bool, bool]]) -> dict[str, Callable]:
    """The stacks whose final norm stands before and after layers, a function of the layer and of their number, instead of at the end."""

    def altered(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> np.ndarray:
        norm, own = stacks.final_norm, parameters["layers"]

        def normed(layer: Callable) -> Callable:
            def of(part: Any, config: Any, x: np.ndarray, *others: Any) -> np.ndarray:
                before, after = where(next(int(index) for index, each in own.items() if each is part), len(own))
                y = layer(part, config, norm(parameters, config, x) if before else x, *others)
                return norm(parameters, config, y) if after else y

            return of

        with (
            mock.patch.object(layers, "encoder_layer", normed(layers.encoder_layer)),
            mock.patch.object(layers, "decoder_layer", normed(layers.decoder_layer)),
            mock.patch.object(stacks, "final_norm", lambda parameters, config, x: x),
        ):
            return original(parameters, config, *rest, **options)

    return dict.fromkeys(STACKS, altered)


def _with_its_input(original: Callable, *args: Any, **options: Any) -> np.ndarray:
    given = bound(original, *args, **options)
    return original(*args, **options) + given["x_bsd" if "x_bsd" in given else "x_btd"]


def _layers_of(to: str, other: str, *names: str) -> Callable:
    """The model in which these parts of the layers of one stack are those of the other's layers of the same depth."""

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


_STACK: dict[str, Any] = {
    "torch": "for layer in self.layers: x = layer(x)\nreturn self.final_norm(x)  # once, after the last layer",
    "tf": "for block in self.blocks: x = block(x)\nreturn self.final_norm(x)  # once, after the last layer",
    "jax": "for layer in self.layers: x = layer(x)\nreturn self.final_norm(x)  # once, after the last layer",
}
DEFECTS = (
    Defect(
        id="NRM10",
        title="the final norm is missing, or one is added",
        what="The stack ends without the config's final norm, or with a fresh one (scale 1, offset 0) that the config does not have.",
        shows="The output of a whole stack differs although every layer agrees. Any input shows it.",
        torch="nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width))  # the default is none; nn.Transformer always has one",
        tf="x = self.final_norm(x) if self.final_norm else x",
        jax="x = self.final_norm(x) if self.config.final_norm else x",
        elsewhere=CONFIGURED,
        evidence="pytorch#24930, pytorch#50086, pytorch#74092",
        replaces=dict.fromkeys(STACKS, other_final_norm),
    ),
    Defect(
        id="STR1",
        title="every layer is the first one",
        what="`layers = [layer] * n` repeats one layer: all depths share the parameters of depth 0.",
        shows="The parameters count once, and the output is that of equal layers. Two layers show it.",
        torch="self.layers = nn.ModuleList(Layer(config) for _ in range(depth))  # or copy.deepcopy; not [layer] * depth",
        tf="self.blocks = [Layer(config) for _ in range(depth)]  # not [layer] * depth",
        jax="self.layers = [Layer(config) for _ in range(depth)]  # not [layer] * depth",
        elsewhere=LOADED,
        evidence="pytorch-vq-vae#2",
        variants={
            "every layer is the last one": dict.fromkeys(STACKS, _one_layer_repeated(-1)),
            "every layer has the norms of the first one": dict.fromkeys(STACKS, _parts_of_the_first()),
        }
        | {
            f"every layer has {words} of the first one": dict.fromkeys(STACKS, _parts_of_the_first(name))
            for name, words in SUBLAYERS.items()
        },
        replaces=dict.fromkeys(STACKS, _one_layer_repeated(0)),
    ),
    Defect(
        id="NRM22",
        title="the final norm stands before the last layer",
        component="encoder",
        what="The stack's own norm is applied within the stack instead of to its result.",
        shows="The output of a whole stack differs although every layer agrees. A final norm shows it.",
        **_STACK,
        variants={
            "the final norm stands before the first layer": _final_norm(lambda index, count: (index == 0, False)),
            "the final norm stands before every layer": _final_norm(lambda index, count: (True, False)),
            "the final norm stands after every layer": _final_norm(lambda index, count: (False, True)),
        },
        evidence="derived, not reported",
        replaces=_final_norm(lambda index, count: (index == count - 1, False)),
    ),
    Defect(
        id="STR12",
        title="the stack's input is added to its output",
        component="encoder",
        what="`x + stack(x)`: one residual more, around all of the layers.",
        shows="The output is too near the embedding. Any input shows it.",
        **_STACK,
        evidence="derived, not reported",
        replaces=dict.fromkeys(STACKS, _with_its_input),
    ),
    Defect(
        id="STR13",
        title="the decoder's self-attention and feed-forward are the encoder's",
        component="transformer",
        what="One object of each is made and given to both stacks, or the weights of one are loaded into both.",
        shows="The parameters of one of the two do not matter. Trained parameters show it.",
        torch="decoder_layer = DecoderLayer(Attention(config), Attention(config), FeedForward(config))  # new objects; or copy.deepcopy",
        tf="decoder_block = DecoderBlock(Attention(config), Attention(config), FeedForward(config))  # new layers",
        jax="decoder_layer = DecoderLayer(Attention(config), Attention(config), FeedForward(config))  # new modules",
        elsewhere=LOADED,
        variants={
            "the decoder's self-attention is the encoder's": {MODEL: _layers_of("decoder", "encoder", "self_attention")},
            "the decoder's feed-forward is the encoder's": {MODEL: _layers_of("decoder", "encoder", "feed_forward")},
            "the encoder's self-attention and feed-forward are the decoder's": {
                MODEL: _layers_of("encoder", "decoder", "self_attention", "feed_forward")
            },
        },
        evidence="derived, not reported",
        replaces={MODEL: _layers_of("decoder", "encoder", "self_attention", "feed_forward")},
    ),
)
