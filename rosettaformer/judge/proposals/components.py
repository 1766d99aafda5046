"""Finds the component of a module by its parameters: the first whose canonical names they all have."""

from collections.abc import Mapping, Sequence
from typing import Any

from reference_numpy import parameters, preset

from .component_inputs import INPUTS, OTHER_DIVISION
from .draft import named_rows
from .model_parts import Match, matched
from .parameter_leaves import Leaf
from .user_module import letters

SHOWN = (
    "attention_bias",
    "output_bias",
    "norm_offset",
    "gated_feed_forward",
    "feed_forward_bias",
    "query_key_norm",
    "norm_placement",
)  # fields that a layer's tensors show
_SMALL = (
    "decoder_layer", "encoder_layer", "cross_attention_sublayer", "feed_forward_sublayer", "multi_head_attention", "feed_forward",
    "layer_norm", "logits",
)  # fmt: skip


def component_of(leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> str:
    """Returns the component of the parameters. Raises ValueError if there is none."""
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
        best = max(whole, key=lambda component: whole[component])
        return "rms_norm" if best == "layer_norm" and not found[best].shown.get("norm_offset", True) else best
    raise ValueError(
        "what the module is of a Transformer is not known from its parameters; name it with --component, one of "
        f"{', '.join(INPUTS)} (docs/ports.md, {OTHER_DIVISION}); its parameters are "
        + ", ".join(f"{leaf.path} {leaf.shape}" for leaf in leaves[:8])
        + ", ..." * (len(leaves) > 8)
    )


def _as(component: str, leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> Match:
    return matched(component, list(leaves), letters(sizes))


def _share(component: str, found: Match, sizes: Mapping[str, Any]) -> float:
    """Returns the share of the component's canonical names that have a tensor; 0 if a name has several, or a decoder layer has no
    cross-attention.
    """
    names = list(named_rows(found.root))
    if len(set(names)) < len(names) or (component == "decoder_layer" and not crosses(found.root)):
        return 0.0
    shown = {name: found.shown[name] for name in SHOWN if name in found.shown}
    wanted = parameters.axes(preset("nn_transformer", **(dict(sizes) | shown)), component)
    return len(wanted.keys() & {*names}) / len(wanted)


def _model(leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> str:
    shown = _as("transformer", leaves, sizes).shown
    if "encoder_layers" not in shown:  # its layers have cross-attention, and there is no encoder
        return "token_decoder"
    return str(shown["model"]) or "token_encoder"


def crosses(part: Any) -> bool:
    """Whether a layer, or one inside it, has cross-attention."""
    return any(child.path == "cross_attention" or crosses(child) for child in part.parts)
