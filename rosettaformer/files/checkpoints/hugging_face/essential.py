"""Normalizes configs, so that two configs of the same model are equal."""

from collections.abc import Sequence
from typing import Any

from reference_numpy import TransformerConfig


def essential(config: TransformerConfig) -> dict[str, Any]:
    """Returns the fields that have an effect, in normal form.

    Patterns are as short as possible, and the scale of the scores is a number.
    """
    fields = config.to_dict()
    kinds = [config.layer_kind(layer) for layer in range(max(config.encoder_layers, config.decoder_layers))]
    fields["layer_pattern"] = shortest(["local" if kind.window else "global" for kind in kinds])
    fields["rotary_pattern"] = shortest([kind.rotary for kind in kinds])
    if config.score_scale is None:
        fields["score_scale"] = config.key_size**-0.5
    active = {
        "sinusoid_layout": config.positions == "sinusoidal",
        "rotary_layout": config.positions == "rotary",
        "rotary_fraction": config.positions == "rotary",
        "rotary_pattern": config.positions == "rotary",
        **dict.fromkeys(("rotary_base", "rotary_scaling"), any(kind.rotary and not kind.window for kind in kinds)),
        **dict.fromkeys(("local_rotary_base", "local_rotary_scaling"), any(kind.rotary and kind.window for kind in kinds)),
        "window": any(kind.window for kind in kinds),
        "round_embedding_scale": config.scale_embedding,
        "pooler_activation": config.pooler,
    }
    return {name: value for name, value in fields.items() if active.get(name, True)}


def shortest(values: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the shortest pattern that yields these values when repeated."""
    borders = [0] * len(values)  # borders[i]: length of the longest proper prefix of values[:i + 1] that is also its suffix
    for index in range(1, len(values)):
        border = borders[index - 1]
        while border and values[index] != values[border]:
            border = borders[border - 1]
        borders[index] = border + (values[index] == values[border])
    return tuple(values[: len(values) - borders[-1]]) if values else ()
