"""Defects of the place where positions are added, and of their start in the decoder."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import positional_encoding

from ..reference.patching import patched
from .alteration import Altered, Variants
from .combinators import on_result

Array = np.ndarray
LEARNED, ENCODING = "positional_encoding.position_embedding", "positional_encoding.positional_encoding"


def _before_every_layer(side: str, stack: str) -> Callable:
    """Adds the positions before every layer of the encoder or decoder, not only the first."""

    def altered(original: Callable, parameters: Any, config: Any, token: Array, *rest: Any, **options: Any) -> Array:
        added: list[Array] = []

        def kept(function: Callable, *given: Any) -> Array:
            added.append(function(*given))
            return added[-1]

        def with_positions(layer: Callable, own: Any, config: Any, x_btd: Array, *others: Any) -> Array:
            first = own is parameters[stack]["layers"]["0"]
            return layer(own, config, x_btd if first else x_btd + added[0], *others)

        with patched({LEARNED: kept, ENCODING: kept, f"layers.{stack}_layer": with_positions}):
            return original(parameters, config, token, *rest, **options)

    return altered


def _of_the_index(stack: str) -> Callable:
    """The encoder or decoder whose every layer, the first one, too, adds the sinusoids of the index in the row; a table of positions is
    read as before."""

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        encoding = positional_encoding.positional_encoding

        def with_positions(layer: Callable, own: Any, config: Any, x_btd: Array, *others: Any) -> Array:
            return layer(own, config, x_btd + encoding(np.arange(x_btd.shape[1])[None], x_btd.shape[2], x_btd.dtype), *others)

        with patched({ENCODING: on_result(np.zeros_like), f"layers.{stack}_layer": with_positions}):
            return original(*args, **options)

    return altered


def _after_the_source(original: Callable, parameters: Any, config: Any, source: Any, *rest: Any, **options: Any) -> Array:
    def going_on(numbered: Callable, config: Any, side: str, *given: Any) -> tuple[Array, Array]:
        mask_bt, position_bt = numbered(config, side, *given)
        return mask_bt, position_bt + source.shape[1] if side == "target" and source is not None else position_bt

    with patched({"inputs.masked_positions": going_on}):
        return original(parameters, config, source, *rest, **options)


ALTERED: Altered = {
    "PE25": {
        "transformer.encode": _before_every_layer("source", "encoder"),
        "transformer.decode": _before_every_layer("target", "decoder"),
    },
    "PE26": {"transformer.transformer": _after_the_source},
}
VARIANTS: Variants = {
    "PE25": {
        "the sinusoids of the index in the row are added before every layer, whatever is padding": {
            "transformer.encode": _of_the_index("encoder"),
            "transformer.decode": _of_the_index("decoder"),
        }
    },
}
