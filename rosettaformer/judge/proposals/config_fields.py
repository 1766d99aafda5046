"""The config fields of a port: those that the module fixes, and those that no tensor reveals."""

from collections.abc import Mapping
from typing import Any

from reference_numpy.config import ACTIVATIONS, ROTARY_LAYOUTS

from .components import has_norms, is_attention, is_fed_forward, is_model
from .draft import Choice, Draft
from .open_arguments import computes_angles

GUESSED = ("positions", "final_norm", "embedding_norm", "share_embeddings", "tie_logits")  # guessed from the existence and names of tensors
# assumed of modules with RoPE
_PLAIN: dict[str, Any] = {
    "rotary_scaling": {"kind": "none"}, "rotary_fraction": 1.0, "layer_pattern": ("global",), "score_cap": None,
}  # fmt: skip
_BASES = (10000.0, 500000.0, 1000000.0)
_EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-8, 1e-7, 1e-9, 1e-4)


def fixed(draft: Draft) -> dict[str, Any]:
    """Returns the config fields that the module's constructor and tensors reveal."""
    component, taken, sizes, shown = draft.component, draft.construction.fields, draft.sizes, draft.match.shown
    found: dict[str, Any] = {}
    if is_attention(component):
        found |= _of_attention(taken, sizes) | {"attention_bias": shown.get("attention_bias", True)}
        if "query_key_norm" in shown or draft.source.rotates:
            found["query_key_norm"] = shown.get("query_key_norm", "none")
    if has_norms(component) and "norm_placement" in shown:
        found["norm_placement"] = shown["norm_placement"]
    if is_attention(component) and draft.source.rotates:
        found |= _PLAIN | ({"rotary_base": _BASES[0], "key_size": sizes["key_size"]} if computes_angles(draft.call.masks.values()) else {})
    if (has_norms(component) or component == "rms_norm") and not shown.get("norm_offset", True):
        found["norm_offset"] = False
    if has_norms(component) and is_fed_forward(component):
        found["residual_multiplier"] = 1.0
    if is_fed_forward(component):
        if shown.get("gated_feed_forward"):
            found |= {"gate_limit": None, "hidden_offset": 0.0}
        if shown.get("gated_feed_forward") or not shown.get("feed_forward_bias", True):
            found |= {name: shown[name] for name in ("gated_feed_forward", "feed_forward_bias")}
        if "feed_forward_width" not in taken or sizes["feed_forward_width"] != draft.construction.width:
            found |= {name: sizes[name] for name in ("model_width", "feed_forward_width")}
    if component in ("encoder", "decoder", "decoder_layer", "token_decoder", "transformer"):
        found["encoder_layers"] = 0 if draft.decoder_only else shown.get("encoder_layers", 2) or 2
        found["decoder_layers"] = shown.get("decoder_layers", 2) or 2
    if component in ("encoder", "decoder"):
        found["final_norm"] = shown.get("final_norm", False)
    if component == "logits":
        found["output_bias"] = shown.get("output_bias", False)
    return found | (_of_model(draft) if is_model(component) else {})


def _of_attention(taken: set[str], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the head sizes that are not constructor arguments."""
    names = ["heads", "key_value_heads", "key_size", "value_size"]
    if "key_size" in taken:
        free = {"key_value_heads", "value_size"} & taken | ({"key_size"} if "value_size" in taken else set())
    else:  # the width divided by the number of heads
        names, free = ["model_width", *names], {"key_value_heads"} & taken
    return {name: sizes[name] for name in names if name not in free}


def _of_model(draft: Draft) -> dict[str, Any]:
    """Returns the choices of a whole model."""
    taken, sizes, shown, component = draft.construction.fields, draft.sizes, draft.match.shown, draft.component
    found: dict[str, Any] = {"encoder_layers": shown["encoder_layers"]} if component == "token_encoder" else {}
    if sizes["source_vocabulary"] == sizes["target_vocabulary"]:
        found |= {name: sizes[name] for name in ("source_vocabulary", "target_vocabulary")}
    names = ["positions", "final_norm", "embedding_norm"]
    names += ["output_bias", "tie_logits"] * (component != "token_encoder") + ["share_embeddings"] * (component == "transformer")
    found |= {name: shown[name] for name in names} | {"segments": 0, "position_offset": 0}
    if shown["positions"] == "sinusoidal":
        found["max_positions"] = 0
    elif shown["rows"]:
        found["max_positions"] = shown["rows"]
    if "padding_id" in taken and draft.call.masks:  # the port derives missing masks from it
        found["padding_id"] = sizes["padding_id"]
    return found | {"position_start": "row"}


def choices(draft: Draft, epsilon: float | None) -> list[Choice]:
    """Returns the config choices that no tensor reveals. epsilon: of the module's norms."""
    taken, component, fields = draft.construction.fields, draft.component, draft.fixed
    normed, modern, found = has_norms(component), "norm_offset" in fields, list[Choice]()

    def add(name: str, values: tuple[Any, ...], shows_in: str, read: bool = False) -> None:
        if name not in taken:
            found.append(Choice(name, tuple(dict.fromkeys(values)), shows_in, read))

    if modern and normed:
        add("norm", ("rms", "layer"), "norms")
    if modern:
        add("norm_one_plus_scale", (False, True), "norms")
    if is_attention(component) and draft.source.rotates:
        add("positions", ("rotary", fields.get("positions", "none")), "attention")
        add("rotary_layout", ROTARY_LAYOUTS, "attention")
        if "rotary_base" not in fields:
            add("rotary_base", _BASES, "attention")
    if normed or component.endswith("_norm"):
        add("epsilon", (*((epsilon,) if epsilon is not None else ()), *_EPSILONS), "norms", epsilon is not None)
    if normed and "norm_first" not in taken and "norm_placement" not in fields:
        add("norm_placement", ("post", "pre", *(("after",) if modern else ())), "norms")
    if is_fed_forward(component):
        add("activation", ACTIVATIONS, "feed_forward")
    if is_model(component) or component == "embedding":
        add("scale_embedding", (True, False), "norms")
    if is_model(component) and fields["final_norm"] != fields["embedding_norm"]:
        add("final_norm", (fields["final_norm"], fields["embedding_norm"]), "norms")
    if is_model(component):
        add("padding_id", (0, None, 1), "target" if draft.decoder_only else "source")
    return found
