"""How KerasHub reads the small folder of each family: the entries that must change for its model to conform."""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """An entry of config.json, or the folder's dtype: the conforming value, the status with the family's own value, and the reason."""

    value: Any
    status: str
    why: str


_EPSILON = "ignored, every norm uses 1e-6"
_BASE = "ignored (gemma_attention.py:97)"
_SCALE = "ignored, scales by `head_dim` (gemma_decoder_block.py:68)"
_LOCAL = ["sliding_attention"] * 5
FOLDERS: Mapping[str, Mapping[str, Entry]] = {
    "llama": {
        "head_dim": Entry(8, "error", "ignored, heads have width / heads"),
        "rms_norm_eps": Entry(1e-6, "differs", f"{_EPSILON} (convert_llama3.py:16)"),
        "rope_parameters": Entry({"rope_type": "default", "rope_theta": 500000.0}, "differs", "ignored except `rope_theta`"),
    },
    "mistral": {"dtype": Entry("float16", "differs", "weights are rounded to float16 (convert_mistral.py:38)")},
    "qwen2": {"use_sliding_window": Entry(False, "differs", "no window (convert_qwen.py:24): shorter prompts conform")},
    "qwen3": {"rms_norm_eps": Entry(1e-5, "differs", "query-key norms always use 1e-5 (qwen3_decoder.py:80)")},
    "gemma": {
        "rms_norm_eps": Entry(1e-6, "differs", f"{_EPSILON} (convert_gemma.py:13)"),
        "rope_parameters.rope_theta": Entry(10000.0, "differs", _BASE),
    },
    "gemma2": {
        "rms_norm_eps": Entry(1e-6, "differs", f"{_EPSILON} (convert_gemma.py:23)"),
        "rope_parameters.rope_theta": Entry(10000.0, "differs", _BASE),
        "query_pre_attn_scalar": Entry(10, "differs", _SCALE),
    },
    "gemma3_text": {
        "rms_norm_eps": Entry(1e-6, "differs", "only the final norm uses it (gemma3_backbone.py:255)"),
        "query_pre_attn_scalar": Entry(10, "differs", _SCALE.replace("gemma_decoder_block.py:68", "gemma3_decoder_block.py:94")),
        "layer_types": Entry([*_LOCAL, "full_attention"], "differs", "always five windows of six layers (gemma3_backbone.py:248)"),
        "rope_parameters.sliding_attention.rope_theta": Entry(10000.0, "differs", "ignored (gemma3_backbone.py:249)"),
    },
    "smollm3": {},
    "gpt2": {
        "n_inner": Entry(192, "error", "ignored, always 4 * `n_embd` (convert_gpt2.py:15)"),
        "layer_norm_epsilon": Entry(1e-5, "differs", "ignored, every norm uses 1e-5 (gpt2_backbone.py:118)"),
    },
    "bert": {
        "hidden_act": Entry("gelu_new", "differs", "always the tanh approximation (bert_backbone.py:131)"),
        "layer_norm_eps": Entry(1e-12, "differs", "ignored, every norm uses 1e-12 (bert_backbone.py:117)"),
        "architectures": Entry(
            ["BertModel"], "error", "reads a pooler, which others lack (convert_bert.py:150)"
        ),
    },
    "roberta": {
        "type_vocab_size": Entry(0, "differs", "ignores token types; published ones are 0 (convert_roberta.py:30)"),
        "layer_norm_eps": Entry(1e-5, "differs", "ignored, every norm uses 1e-5 (roberta_backbone.py:92)"),
    },
    "xlm-roberta": {
        "layer_norm_eps": Entry(1e-5, "differs", "ignored, every norm uses 1e-5 (roberta_backbone.py:92)"),
    },
    "distilbert": {},
}  # fmt: skip
# no converter
REFUSED = (
    "phi3", "olmo2", "ministral", "olmo3", "glm", "glm4", "stablelm", "starcoder2", "seed_oss", "exaone4", "ernie4_5", "helium", "gpt_neo",
    "opt", "camembert", "granite", "olmoe", "granitemoe", "granitemoeshared", "glm4_moe", "gpt_neox",
    "phi", "cohere", "cohere2", "gptj", "codegen", "marian", "pegasus", "mbart", "m2m_100", "arcee", "nemotron",
    "hunyuan_v1_dense", "nomic_bert", "modernbert", "biogpt", "falcon", "electra", "olmo", "persimmon",
)  # fmt: skip
UNMEASURED = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "bart")  # with a converter


def table() -> str:
    """Returns the table of docs/keras-hub.md: the entries with which a family's folder conforms, and why its own values do not."""
    rows = ["| folder | entry | conforms with | its own value |", "|---|---|---|---|"]
    for family, entries in FOLDERS.items():
        rows += [f"| {family} | `{name}` | {_shown(name, entry.value)} | {entry.status}: {entry.why} |" for name, entry in entries.items()]
        rows += [] if entries else [f"| {family} | | | conforms |"]
    others = f"There is no converter for {', '.join(REFUSED)}. Those of {', '.join(UNMEASURED)} are not measured."
    refused = textwrap.fill(others, 99, break_on_hyphens=False)
    return "\n".join([*rows, "", refused]) + "\n"


def _shown(name: str, value: Any) -> str:
    """Returns an entry's value in a few words."""
    words = {"layer_types": "five windows, then none", "rope_parameters": "those of type default", "architectures": "`BertModel`"}
    return words.get(name) or (str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value))
