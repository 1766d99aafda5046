"""Normalizes configs, so that two configs of the same model are equal."""

from collections.abc import Sequence
from typing import Any

from reference_numpy import TransformerConfig


def essential(config: TransformerConfig) -> dict[str, Any]:
    """Returns the fields that have an effect, in normal form.

    Patterns are as short as possible, and the scale of the scores is a number.
    """
    fields, groups, layers = config.to_dict(), config.groups(), range(max(config.encoder_layers, config.decoder_layers))
    kinds, mixed = [config.layer_kind(layer) for layer in layers], [config.has_experts(layer) for layer in layers]
    fields["layer_pattern"] = shortest(["local" if kind.window else "global" for kind in kinds])
    fields["rotary_pattern"] = shortest([kind.rotary for kind in kinds])
    fields["expert_pattern"] = shortest(mixed)
    if config.score_scale is None:
        fields["score_scale"] = config.key_size**-0.5
    active = {
        "sinusoid_layout": config.positions == "sinusoidal",
        "rotary_layout": config.positions == "rotary",
        "rotary_fraction": config.positions == "rotary",
        "rotary_pattern": config.positions == "rotary",
        **dict.fromkeys(("rotary_base", "rotary_scaling"), any(kind.rotary and not kind.window for kind in kinds)),
        **dict.fromkeys(("local_rotary_base", "local_rotary_scaling"), any(kind.rotary and kind.window for kind in kinds)),
        "query_key_norm_offset": config.query_key_norm != "none" and config.norm_offset,
        "query_key_norm_after_rotation": config.query_key_norm != "none" and any(kind.rotary for kind in kinds),
        "window": any(kind.window for kind in kinds),
        "feed_forward_width": not all(mixed),
        **dict.fromkeys(("gate_limit", "hidden_offset"), config.gated_feed_forward),
        **dict.fromkeys((*groups["experts"], *groups["router"], *groups["expert-groups"]), any(mixed)),
        "expert_pattern": True,
        "round_embedding_scale": config.scale_embedding,
        "pooler_activation": config.pooler,
        "first_norm": config.norm_placement == "pre",
        "head_bias": config.masked_language_head,
    }
    if any(mixed):
        active |= dict.fromkeys(("router_groups_kept", "router_group_score", "router_group_mask"), config.router_groups > 1)
        active |= {"router_epsilon": config.router_normalize, "shared_gate": config.shared_width > 0}
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
