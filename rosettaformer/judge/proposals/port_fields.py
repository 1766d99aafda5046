"""The config fields of a port: those that the module's constructor and tensors fix, and those that no tensor shows."""

from collections.abc import Mapping
from typing import Any

from reference_numpy.config import ACTIVATIONS, ROTARY_LAYOUTS

from ..expectation.components import model_of
from .component_inputs import has_norms, is_attention, is_fed_forward, is_model
from .draft import Choice, Draft
from .rotations import are_given

_OFFSETS = (0, 2, 1)  # of learned positions
GUESSED = ("positions", "final_norm", "embedding_norm", "share_embeddings", "tie_logits")  # by which tensors exist, and by their names
# what is taken for granted where positions rotate
_PLAIN: dict[str, Any] = {
    "rotary_scaling": {"kind": "none"}, "rotary_fraction": 1.0, "layer_pattern": ("global",), "score_cap": None,
}  # fmt: skip
_BASES = (10000.0, 500000.0, 1000000.0)
_EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-8, 1e-7, 1e-9, 1e-4)


def fixed(draft: Draft, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config fields that the module fixes, as far as its constructor and tensors show them."""
    component, taken, sizes = draft.component, draft.construction.fields, draft.sizes
    found: dict[str, Any] = {}
    if "attention" in component or (has_norms(component) and component != "feed_forward_sublayer"):
        found |= _of_attention(taken, sizes) | {"attention_bias": shown.get("attention_bias", True)}
    if is_attention(component) and ("query_key_norm" in shown or draft.source.rotates):
        found["query_key_norm"] = shown.get("query_key_norm", "none")
    if has_norms(component) and "norm_placement" in shown:
        found["norm_placement"] = shown["norm_placement"]
    if is_attention(component) and draft.source.rotates:
        found |= _PLAIN | ({"rotary_base": _BASES[0], "key_size": sizes["key_size"]} if are_given(draft.call.masks.values()) else {})
    if has_norms(component) or component == "rms_norm":
        found |= {} if shown.get("norm_offset", True) else {"norm_offset": False}
    if is_fed_forward(component):
        names = ("gated_feed_forward", "feed_forward_bias")
        found |= {name: shown[name] for name in names if shown.get("gated_feed_forward") or not shown.get("feed_forward_bias", True)}
    if ("feed_forward_width" not in taken or sizes["feed_forward_width"] != draft.construction.width) and is_fed_forward(component):
        found |= {name: sizes[name] for name in ("model_width", "feed_forward_width")}
    if component in ("encoder", "decoder", "decoder_layer", "token_decoder", "transformer"):
        found["encoder_layers"] = 0 if draft.decoder_only else shown.get("encoder_layers", 2) or 2
        found["decoder_layers"] = shown.get("decoder_layers", 2) or 2
    if component in ("encoder", "decoder"):
        found["final_norm"] = shown.get("final_norm", False)
    if component == "logits":
        found["output_bias"] = shown.get("output_bias", False)
    return found | (_of_model(draft, shown) if is_model(component) else {})


def _of_attention(taken: set[str], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the head sizes, except those that the constructor takes."""
    names = ["heads", "key_value_heads", "key_size", "value_size"]
    if "key_size" in taken:
        free = {"key_value_heads", "value_size"} & taken | ({"key_size"} if "value_size" in taken else set())
    else:  # it is then the width divided by the heads
        names, free = ["model_width", *names], {"key_value_heads"} & taken
    return {name: sizes[name] for name in names if name not in free}


def _of_model(draft: Draft, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the choices of a whole model."""
    taken, sizes, component = draft.construction.fields, draft.sizes, draft.component
    headed, decoding = model_of(component) != component, component in ("transformer", "token_decoder")
    found: dict[str, Any] = {}
    if not decoding:
        found |= {"encoder_layers": shown["encoder_layers"]} | ({"decoder_layers": 0} if headed else {})
    if sizes["source_vocabulary"] == sizes["target_vocabulary"]:
        found |= {name: sizes[name] for name in ("source_vocabulary", "target_vocabulary")}
    names = ["positions", "final_norm", "embedding_norm"]
    names += ["segments"] if "segments" not in taken or not shown["segments"] else []
    if headed:
        names += ["pooler", "masked_language_head"] + ["classes"] * ("classes" not in taken)
    if decoding or shown.get("masked_language_head"):
        names += ["output_bias", "tie_logits"]
    names += ["share_embeddings"] * (component == "transformer")
    found |= {name: shown[name] for name in names}
    if shown["positions"] == "sinusoidal":
        found |= {"max_positions": 0, "position_offset": 0}
    if "padding_id" in taken and draft.call.masks:  # the port makes the masks that a case lacks from it
        found["padding_id"] = sizes["padding_id"]
    return found | {"position_start": "row"}


def choices(draft: Draft, epsilon: float | None) -> list[Choice]:
    """Returns the choices of the config that no tensor shows. epsilon: what the module's norms say."""
    taken, component, found = draft.construction.fields, draft.component, []
    if "norm_offset" in draft.fixed:
        found += [Choice("norm", ("rms", "layer"), "norms")] if has_norms(component) else []
        found.append(Choice("norm_one_plus_scale", (False, True), "norms"))
    if is_attention(component) and draft.source.rotates:
        found.append(Choice("positions", tuple(dict.fromkeys(("rotary", draft.fixed.get("positions", "none")))), "attention"))
        found.append(Choice("rotary_layout", ROTARY_LAYOUTS, "attention"))
        found += [] if "rotary_base" in taken or "rotary_base" in draft.fixed else [Choice("rotary_base", _BASES, "attention")]
    if (has_norms(component) or component.endswith("_norm")) and "epsilon" not in taken:
        values = dict.fromkeys(((epsilon,) if epsilon is not None else ()) + _EPSILONS)
        found.append(Choice("epsilon", tuple(values), "norms", read=epsilon is not None))
    if has_norms(component) and "norm_first" not in taken and "norm_placement" not in draft.fixed:
        later = ("after",) * ("norm_offset" in draft.fixed)
        found.append(Choice("norm_placement", ("post", "pre", *later), "norms"))
    if is_fed_forward(component):
        found.append(
            Choice("activation", ACTIVATIONS, "norms" if draft.fixed.get("masked_language_head") else "feed_forward")
        )  # also that of the head
    if is_model(component) or component == "embedding":
        found.append(Choice("scale_embedding", (True, False), "norms"))
    if draft.fixed.get("final_norm", False) != draft.fixed.get("embedding_norm", False) and is_model(component):
        found.append(Choice("final_norm", (draft.fixed["final_norm"], draft.fixed["embedding_norm"]), "norms"))
    if draft.rows:
        found.append(Choice("position_offset", tuple(dict.fromkeys((draft.spare_rows, *_OFFSETS))), "norms"))
    if is_model(component) and "padding_id" not in taken:
        found.append(Choice("padding_id", (0, None, 1), "target" if draft.decoder_only else "source"))
    return found
