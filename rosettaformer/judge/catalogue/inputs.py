"""Known bugs of the first layer's input: position tables and the embedding norm."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import normalization, positional_encoding

from ..expectation.patching import patched
from .alteration import Altered, Array, Variants, on_arguments
from .tables import POSITIONS, SUM
from .transformer import fresh_norm

_SEGMENTS = "embedding.segment_embedding"


def _offset_added(original: Callable, parameters: Any, position_bt: Array, offset: int) -> Array:
    last = len(parameters["table"]) - 1 - offset
    return original(parameters, position_bt if offset else np.minimum(position_bt + 2, last), offset)


def _sinusoidal(original: Callable, parameters: Any, position_bt: Array, offset: int) -> Array:
    table_pd = parameters["table"]
    return positional_encoding.positional_encoding(position_bt, table_pd.shape[1], table_pd.dtype)


def _from_zero(original: Callable, parameters: Any, config: Any, *rest: Any) -> Array:
    """Drops the offset of sinusoidal positions."""
    return original(parameters, config.replace(position_offset=0) if config.positions == "sinusoidal" else config, *rest)


def _other_norm(original: Callable, parameters: Any, config: Any, side: str, *rest: Any) -> Array:
    x_btd = original(parameters, config.replace(embedding_norm=False), side, *rest)
    return x_btd if config.embedding_norm else fresh_norm(x_btd, config.epsilon)


def _after_the_norm(*places: str) -> Callable:
    """Adds the results of these functions after the embedding norm instead of before it."""

    def altered(original: Callable, parameters: Any, config: Any, side: str, *rest: Any) -> Array:
        later: list[Array] = []

        def put_off(function: Callable, *given: Any) -> Array:
            later.append(function(*given))
            return np.zeros_like(later[-1])

        if not config.embedding_norm:
            return original(parameters, config, side, *rest)
        with patched(dict.fromkeys(places, put_off)):
            x_btd = original(parameters, config, side, *rest)
        return sum(later, x_btd)

    return altered


def _norm_of_dropped(original: Callable, parameters: Any, config: Any, side: str, *rest: Any) -> tuple[Array, Array, Array]:
    if not config.embedding_norm:
        return original(parameters, config, side, *rest)
    x_btd, *others = original(parameters, config.replace(embedding_norm=False), side, *rest)
    return normalization.norm(parameters.get(f"{side}_embedding_norm", {}), config, x_btd), *others


ALTERED: Altered = {
    "PE14": {"positional_encoding.position_embedding": on_arguments(offset=0), SUM: _from_zero},
    "PE15": {"positional_encoding.position_embedding": _offset_added},
    "PE17": {"positional_encoding.position_embedding": _sinusoidal},
    "NRM12": {"inputs.embed": _other_norm},
    "NRM13": {"inputs.embed": _after_the_norm(*POSITIONS, _SEGMENTS)},
    "NRM14": {"transformer.embed": _norm_of_dropped},
}
VARIANTS: Variants = {
    "NRM13": {
        "positions are added after the embedding norm": {"inputs.embed": _after_the_norm(*POSITIONS)},
        "segments are added after the embedding norm": {"inputs.embed": _after_the_norm(_SEGMENTS)},
    },
}
