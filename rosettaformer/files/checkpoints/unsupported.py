"""Names the unsupported components that a Hugging Face model needs, judging by its config.json."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reference_numpy.fields import is_number

# component -> the families that need it, by model_type
_FAMILIES: Mapping[str, str] = {
    "its own mixture of experts": """
        dbrx deepseek_v2 deepseek_v3 dots1 ernie4_5_moe flex_olmo granitemoehybrid hunyuan_v1_moe
        jamba jetmoe lfm2_moe llama4 llama4_text minimax phimoe qwen3_next""",
    "latent attention": "deepseek_v2 deepseek_v3 kimi_k2 longcat_flash minicpm3",
    "recurrent layers in place of attention": """
        bamba falcon_h1 falcon_mamba granitemoehybrid jamba lfm2 lfm2_moe mamba mamba2 nemotron_h
        qwen3_next recurrent_gemma rwkv zamba zamba2""",
    "linear attention biases (ALiBi)": "bloom mpt",
    "relative position biases": """
        longt5 mpnet mt5 pop2piano switch_transformers t5 t5gemma udop umt5""",
    "disentangled attention": "deberta deberta-v2",
    "embeddings narrower or wider than the model": "albert",
    "weights shared across layers": "albert",
    "windows with global tokens, or random blocks": "longformer led big_bird bigbird_pegasus",
    "convolutions": "speech_to_text squeezebert wav2vec2 whisper",
    "an encoder-decoder": """
        bigbird_pegasus blenderbot blenderbot-small fsmt led longt5 mt5 mvp nllb-moe pegasus_x
        plbart pop2piano prophetnet speech_to_text switch_transformers t5 t5gemma trocr udop umt5
        whisper""",
}

Entries = Mapping[str, Any]


def _true(*names: str) -> Callable[[Entries], bool]:
    return lambda entries: any(entries.get(name) is True for name in names)


def _given(*names: str) -> Callable[[Entries], bool]:
    return lambda entries: any(entries.get(name) not in (None, False, 0, [], {}) for name in names)


def _kinds(word: str) -> Callable[[Entries], bool]:
    return lambda entries: word in str(entries.get("layer_types"))


# component -> whether the entries of config.json show that the model needs it
_SHOWN: Mapping[str, Callable[[Entries], bool]] = {
    "its own mixture of experts": lambda entries: any(
        is_number(entries.get(name)) and entries[name] > 1
        for name in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    ),
    "latent attention": _given("kv_lora_rank", "q_lora_rank"),
    "recurrent layers in place of attention": lambda entries: (
        _given("state_size", "ssm_cfg", "mamba_d_state", "linear_num_key_heads")(entries) or _kinds("linear_attention")(entries)
    ),
    "linear attention biases (ALiBi)": _true("alibi", "use_alibi"),
    "relative position biases": _given("relative_attention_num_buckets", "relative_attention"),
    "embeddings narrower or wider than the model": lambda entries: (
        is_number(entries.get("embedding_size")) and entries["embedding_size"] != entries.get("hidden_size")
    ),
    "an encoder-decoder": _true("is_encoder_decoder"),
    "image or audio inputs": _given("vision_config", "audio_config"),
    "chunked attention": _kinds("chunked_attention"),
}


def components(model_type: str, entries: Entries) -> list[str]:
    """Returns the known unsupported components that a model needs.

    entries: the model's config.json; may be empty.
    """
    listed = [component for component, types in _FAMILIES.items() if model_type in types.split()]
    shown = [component for component, shows in _SHOWN.items() if shows(entries)]
    text = entries.get("text_config")
    within = components(str(text.get("model_type")), text) if isinstance(text, Mapping) else []
    return list(dict.fromkeys([*listed, *within, *shown]))


def reason(model_type: str, entries: Entries, place: Path | None = None) -> str:
    """Explains why a family cannot be read, and what to do. place: its folder, or a file in it."""
    from .hugging_face import inherited  # whose package imports this module

    lacking = components(model_type, entries)
    unknown = ", and config.json does not show which component is missing"
    needs = f": it needs {'; and '.join(lacking)}" if lacking else unknown
    folder = (place if place.is_dir() else place.parent) if place else None
    parent = inherited.reason(folder, entries) if folder else ""
    return (
        f"model_type {model_type} is not supported{parent or needs}. "
        f"`rosettaformer compare transformers:{shlex.quote(str(folder or 'DIR'))} OTHER` compares the whole model with another; "
        "`rosettaformer new-port` starts a port of one of its parts"
    )


def refuse(model_type: str) -> None:
    """Raises ValueError if a family is known to be unsupported."""
    if any(model_type in types.split() for types in _FAMILIES.values()):
        raise ValueError(reason(model_type, {}))
