"""Settings of what the first layer is given: the embedding's scale, shared and tied tables, positions and segments."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..reference.patching import patched
from .alteration import CONFIGURED, Alteration, setting
from .combinators import on_arguments, on_result

__all__ = ["inputs"]

POSITIONS = ("positional_encoding.positional_encoding", "positional_encoding.position_embedding")


def _without_positions(side: str) -> Callable:
    """Gives one of two stacks no positions."""

    def altered(original: Callable, parameters: Any, config: Any, own: str, *rest: Any) -> np.ndarray:
        if own != side or not (config.encoder_layers and config.decoder_layers):
            return original(parameters, config, own, *rest)
        with patched(dict.fromkeys(POSITIONS, on_result(np.zeros_like))):
            return original(parameters, config, own, *rest)

    return altered


def _default_segment(number: int) -> Callable:
    """Takes every token as of this segment if no segments are given and the segment exists."""

    def altered(original: Callable, config: Any, token: np.ndarray, segment_bt: np.ndarray | None) -> np.ndarray:
        return original(config, token, segment_bt) + number * (segment_bt is None and number < config.segments)

    return altered


def inputs() -> Iterator[Alteration]:
    """The settings of what the first layer is given, and of the tables."""

    def shared(config: Any) -> Any:
        return config.replace(share_embeddings=True) if config.source_vocabulary == config.target_vocabulary else config

    def choice(name: str, component: str, title: str, altered: Callable, *places: str) -> Alteration:
        return setting(
            f"{name}=True", component, title, f"build the model with the config's {name}", altered, *places, elsewhere=CONFIGURED
        )

    yield choice("scale_embedding", "embedding", "embeddings are multiplied by sqrt(d)", on_arguments(scale=True))
    tied = on_arguments(config=lambda config: config.replace(tie_logits=True))
    yield choice("tie_logits", "transformer", "the logits use the target table", tied, "transformer.decode")
    sharing = on_arguments(config=shared)
    yield choice("share_embeddings", "transformer", "the target embedding is the source table", sharing, "transformer.decode")
    title, fix = "positions are not added", "add the position of every token"
    yield setting("positions=none", "transformer", title, fix, on_result(np.zeros_like), *POSITIONS)
    for side in ("source", "target"):
        altered = _without_positions(side)
        yield setting(
            f"positions=none of the {side}", "transformer", f"positions are not added to the {side}", fix, altered, "inputs.embed"
        )
    title, fix = "positions are counted from 1", "count positions from 0"
    yield setting("positions=1..", "token_positions", title, fix, on_result(lambda position_bt: position_bt + 1))
    title, fix = "no segment is added", "add the segment embedding, of segment 0 where no segments are given"
    yield setting("segments=none", "segment_embedding", title, fix, on_result(np.zeros_like))
    title, fix = "without segments every token is of segment 1", "take segment 0 for every token where no segments are given"
    yield setting("segments=1 by default", "segment_embedding", title, fix, _default_segment(1), "inputs._segments")
