"""Which component a module is, by its parameters: the first all of whose canonical names they have."""

from collections.abc import Mapping, Sequence
from typing import Any

from reference_numpy import parameters, preset

from .draft import named_rows
from .inputs import INPUTS
from .matching import Match, matched
from .subject import letters
from .walking import Leaf

__all__ = ["component_of", "crosses"]

_SMALL = ("decoder_layer", "encoder_layer", "multi_head_attention", "feed_forward", "layer_norm", "logits")


def component_of(leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> str:
    """What the parameters are of. Raises ValueError where they are of no component."""
    if not leaves:
        raise ValueError("a module without parameters must be named with --component, such as positional_encoding")
    vocabulary = {sizes["source_vocabulary"], sizes["target_vocabulary"]}
    tables = [leaf for leaf in leaves if len(leaf.shape) == 2 and set(leaf.shape) & vocabulary]
    if _as("encoder", leaves, sizes).shown["encoder_layers"]:
        if tables:
            return _model(leaves, sizes)
        crossing = _as("decoder", leaves, sizes).root.parts
        return "decoder" if any(crosses(layer) for layer in crossing) else "encoder"
    if tables and len(leaves) == 1 and not leaves[0].first:
        return "embedding"
    found = {component: _as(component, leaves, sizes) for component in _SMALL}
    whole = {component: _share(component, match, sizes) for component, match in found.items() if not match.rest}
    if whole and max(whole.values()) >= 0.5:
        return max(whole, key=lambda component: whole[component])
    raise ValueError(_unknown(found, leaves, sizes))


def _unknown(found: Mapping[str, Match], leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> str:
    for component, what in (("multi_head_attention", "an attention"), ("feed_forward", "a feed-forward block")):
        rest = {leaf.shape for leaf in found[component].rest}
        if _share(component, found[component], sizes) == 1 and rest == {(sizes["model_width"],)}:
            return f"the module is {what} together with its norm, which no case asks for; name the layer that contains it"
    shared = [leaf for leaf in leaves if leaf.shape == (sizes["key_size"],) * 2]
    if len(shared) >= 3:
        return f"one kernel of shape {shared[0].shape} serves all heads ({shared[0].path}); write its port by hand: docs/ports.md"
    return (
        "what the module is of a Transformer is not known from its parameters; name it with --component, one of "
        f"{', '.join(INPUTS)}; its parameters are {', '.join(f'{leaf.path} {leaf.shape}' for leaf in leaves[:8])}"
        + ", ..."
        * (len(leaves) > 8)
    )


def _as(component: str, leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> Match:
    return matched(component, list(leaves), letters(sizes))


def _share(component: str, found: Match, sizes: Mapping[str, Any]) -> float:
    """The share of the component's canonical names that have a tensor; 0 where a name has several, or a decoder layer does not cross."""
    names = list(named_rows(found.root))
    if len(set(names)) < len(names) or (component == "decoder_layer" and not crosses(found.root)):
        return 0.0
    shown = {name: found.shown[name] for name in ("attention_bias", "output_bias") if name in found.shown}
    wanted = parameters.axes(preset("semillero", **(dict(sizes) | shown)), component)
    return len(wanted.keys() & {*names}) / len(wanted)


def _model(leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> str:
    found = str(_as("transformer", leaves, sizes).shown["model"])
    if not found:
        raise ValueError(
            "an encoder alone must have a pooler or a masked-language head to be compared; name a model that has one, or its layers"
        )
    return found


def crosses(part: Any) -> bool:
    """Whether a layer, or one in it, attends to an encoder's output."""
    return any(child.path == "cross_attention" or crosses(child) for child in part.parts)
