"""The components that `new-port --from` supports, and how parameters reveal them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from reference_numpy import parameters, preset

from ..expectation.components import model_of
from ..ports.adapters.call_mapping import inputs_of, stands_for
from .matching import Matching
from .models import is_encoder_only, matched
from .tensors import Leaf

# candidates for a module without tables and stacks, in the order they are tried
_PARTS = (
    "decoder_layer", "encoder_layer", "cross_attention_sublayer", "feed_forward_sublayer", "multi_head_attention", "feed_forward",
    "layer_norm", "logits",
)  # fmt: skip
COMPONENTS = (
    *_PARTS, "rms_norm", "embedding", "positional_encoding", "self_attention", "self_attention_sublayer", "encoder", "decoder",
    "token_encoder", "token_decoder", "transformer",
)  # fmt: skip
OTHER_DIVISION = '"Different module boundaries"'  # the section of docs/ports.md
# component of queries and memory -> the same with one sequence
OF_ITSELF = {"multi_head_attention": "self_attention", "cross_attention_sublayer": "self_attention_sublayer"}
_DATA = ("x_", "query_", "memory_", "token", "source", "target")  # prefixes of inputs that are not masks or options
_SHOWN = (
    "attention_bias",
    "output_bias",
    "norm_offset",
    "gated_feed_forward",
    "feed_forward_bias",
    "query_key_norm",
    "norm_placement",
)  # fields revealed by a layer's tensors


@functools.cache
def inputs(component: str) -> tuple[str, ...]:
    """Returns the component's inputs in usual order. A separate memory is keys and values."""
    found = [name for name in inputs_of(component) if name.startswith(_DATA) and "mask" not in name] or [*stands_for(component)]
    return tuple(found + ["memory_bsd"] * ("attention" in component and "memory_bsd" in found))


@functools.cache
def masks(component: str) -> tuple[str, ...]:
    """Returns the component's masks in their usual order."""
    return tuple(name for name in inputs_of(component) if "mask" in name)


def is_model(component: str) -> bool:
    """Whether the component takes token ids: a whole model, or one of its two halves."""
    return component in ("token_encoder", "token_decoder", "transformer")


def has_norms(component: str) -> bool:
    """Whether it contains norms."""
    return component.endswith(("_layer", "_sublayer", "encoder", "decoder")) or is_model(component)


def is_attention(component: str) -> bool:
    """Whether it contains an attention."""
    return "attention" in component or (has_norms(component) and not component.startswith("feed_forward"))


def is_fed_forward(component: str) -> bool:
    """Whether it contains a feed-forward network."""
    return component.startswith("feed_forward") or (has_norms(component) and "attention" not in component)


def letters(sizes: Mapping[str, Any]) -> dict[str, int]:
    """Returns each axis letter's size; `v`, `w`: vocabularies; `i`: a head's slice of the width."""
    config = preset("nn_transformer", **sizes)
    slice_ = config.model_width // config.heads
    return {**config.sizes, "v": config.source_vocabulary, "w": config.target_vocabulary, "i": slice_}


def component_of(name: str, leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> str:
    """Returns the first component whose canonical names the parameters cover. name: of the class.

    Raises ValueError if there is none, or for an encoder-only model.
    """
    if not leaves:
        raise ValueError("the module has no parameters: pass its component, such as --component positional_encoding")
    vocabulary = {sizes["source_vocabulary"], sizes["target_vocabulary"]}
    tables = [leaf for leaf in leaves if len(leaf.shape) == 2 and set(leaf.shape) & vocabulary]
    stack = matched("decoder", leaves, letters(sizes))
    if stack.shown["decoder_layers"]:
        return _model(name, matched("transformer", leaves, letters(sizes))) if tables else "decoder" if stack.root.crosses else "encoder"
    if tables and len(leaves) == 1 and not leaves[0].first:
        return "embedding"
    found = {component: matched(component, leaves, letters(sizes)) for component in _PARTS}
    shares = {component: _share(component, work, sizes) for component, work in found.items() if not work.left}
    best = max(shares, key=lambda component: shares[component], default="")
    if best and shares[best] >= 0.5:
        return "rms_norm" if best == "layer_norm" and not found[best].shown.get("norm_offset", True) else best
    raise ValueError(
        "the parameters do not reveal which component the module is. Pass --component with one of "
        f"{', '.join(COMPONENTS)} (docs/ports.md, {OTHER_DIVISION}). The parameters are "
        + ", ".join(f"{leaf.path} {leaf.shape}" for leaf in leaves[:8])
        + ", ..." * (len(leaves) > 8)
    )


def _model(name: str, work: Matching) -> str:
    if is_encoder_only(work):
        raise ValueError(
            f"{name} is an encoder-only model like BERT: check the whole model with `rosettaformer new-port like bert` and "
            "`rosettaformer check bert_port.py --like bert`, or choose one of its layers"
        )
    return "token_decoder" if work.root.crosses and not work.shown["encoder_layers"] else "transformer"


def _share(component: str, work: Matching, sizes: Mapping[str, Any]) -> float:
    """Returns the fraction of canonical names with a tensor; 0 for duplicates."""
    names = [name for name, _ in work.root.named()]
    if len(set(names)) < len(names) or (component == "decoder_layer" and not work.root.crosses):
        return 0.0
    shown = {name: work.shown[name] for name in _SHOWN if name in work.shown}
    wanted = parameters.axes(preset("nn_transformer", **(dict(sizes) | shown)), model_of(component))
    return len(wanted.keys() & {*names}) / len(wanted)
