"""Text models within image-and-text models: Gemma 3, Mistral 3, Qwen2-VL and others.

The text model belongs to a supported family. Its entries are in `text_config` or at the top level
of config.json, and its tensors have a prefix. For text without images, the three positions of
Qwen2-VL's rotation are equal, so the rotation is the usual one.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .families import FAMILIES
from .family import Family

# model_type -> model_type of the text model, if text_config does not set it
TEXTS = {
    "gemma3": "gemma3_text", "llava": "llama", "llava_next": "llama", "mistral3": "mistral",
    "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text",
}  # fmt: skip
# model_type of a text model -> the family that it equals, and its defaults
_QWEN = {
    "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80,
}  # fmt: skip
_ALIKE: Mapping[str, tuple[str, Mapping[str, Any]]] = {"qwen2_vl_text": ("qwen2", _QWEN), "qwen2_5_vl_text": ("qwen2", _QWEN)}
_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.")
_OTHERS = r"(vision_tower|vision_model|visual|multi_modal_projector|image_newline)(\..*)?"  # tensors that are not the text model's
_OTHER_ENTRIES = r"(image|video|vision|audio)_.*"
_SHARED = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "quantization_config")  # apply to the text model


def family_of(said: Mapping[str, Any]) -> Family | None:
    """Returns the text model's family, with the whole model's prefixes; None if unsupported."""
    kind, text = said.get("model_type"), said.get("text_config")
    if not isinstance(kind, str) or kind not in TEXTS:
        return None
    named = text.get("model_type", TEXTS[kind]) if isinstance(text, Mapping) else TEXTS[kind]
    named = _ALIKE[named][0] if named in _ALIKE else named
    family = FAMILIES.get(named) if isinstance(named, str) else None
    return family and dataclasses.replace(family, prefixes=(*_PREFIXES, *family.prefixes), beside=_OTHERS)


def text_entries(family: Family, said: Mapping[str, Any], tensors: Iterable[str]) -> dict[str, Any]:
    """Returns the text model's own config.json. tensors: the tensor names of the whole model."""
    text = said.get("text_config")
    own = dict(text) if isinstance(text, Mapping) else {name: value for name, value in said.items() if name != "text_config"}
    kind = own.get("model_type") if text else None
    defaults = _ALIKE.get(str(kind or TEXTS[said["model_type"]]), ("", {}))[1]
    own = {name: value for name, value in own.items() if not re.fullmatch(_OTHER_ENTRIES, name)}
    own = {**defaults, **{name: said[name] for name in _SHARED if said.get(name) is not None}, **own}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(own.get(name), Mapping):  # reduces the rotation to one position per token
            rest = {entry: value for entry, value in own[name].items() if entry != "mrope_section"}
            usual = {entry: "default" for entry in ("type", "rope_type") if rest.get(entry) == "mrope"}
            own[name] = rest | usual
    # the logits are tied if either config says so, or else if no separate kernel is stored
    given = [one["tie_word_embeddings"] for one in (said, own) if one.get("tie_word_embeddings") is not None]
    stored = any(name.endswith("lm_head.weight") for name in tensors)
    said_so = next((value for value in given if value is not False), False)
    own["tie_word_embeddings"] = said_so if given else not stored
    return own | {"architectures": _classes(family, said.get("architectures")), "model_type": family.model_type}


def _classes(family: Family, named: Any) -> Any:
    """Replaces the class of the whole model with that of its text model."""
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        return named
    if named[0].endswith("ForConditionalGeneration"):
        return [next(name for name, heads in family.classes.items() if heads == ("language_head",))]
    return [family.base] if named[0].endswith("Model") else named
