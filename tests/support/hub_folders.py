"""What KerasHub makes of a family's new folder: the entries with which its model conforms, each of which the family's own folder needs
changed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FOLDERS", "REFUSED", "Entry", "table"]


class Entry(NamedTuple):
    """An entry of config.json, or the dtype of the folder: its value with which the model conforms, how it fares with the family's own
    value, and why.
    """

    value: Any
    status: str
    why: str


_EPSILON = "it is not read: every norm has 1e-6"
_BASE = "it is not read (gemma_attention.py:97)"
_SCALE = "scores are scaled by `head_dim`, whatever it says (gemma_decoder_block.py:68)"
_LOCAL = ["sliding_attention"] * 5
FOLDERS: Mapping[str, Mapping[str, Entry]] = {
    "llama": {
        "head_dim": Entry(8, "error", "it is not read: a head has the width / heads"),
        "rms_norm_eps": Entry(1e-6, "differs", f"{_EPSILON} (convert_llama3.py:16)"),
        "rope_parameters": Entry({"rope_type": "default", "rope_theta": 500000.0}, "differs", "only `rope_theta` is read of it"),
    },
    "mistral": {"dtype": Entry("float16", "differs", "weights are rounded to float16 on the way (convert_mistral.py:38)")},
    "qwen2": {"use_sliding_window": Entry(False, "differs", "there is no window (convert_qwen.py:24): shorter prompts conform")},
    "qwen3": {"rms_norm_eps": Entry(1e-5, "differs", "norms of queries and keys have 1e-5, whatever it says (qwen3_decoder.py:80)")},
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
        "rms_norm_eps": Entry(1e-6, "differs", "only the final norm has it (gemma3_backbone.py:255)"),
        "query_pre_attn_scalar": Entry(10, "differs", _SCALE.replace("gemma_decoder_block.py:68", "gemma3_decoder_block.py:94")),
        "layer_types": Entry([*_LOCAL, "full_attention"], "differs", "five layers of six have the window (gemma3_backbone.py:248)"),
        "rope_parameters.sliding_attention.rope_theta": Entry(10000.0, "differs", "it is not read (gemma3_backbone.py:249)"),
    },
    "smollm3": {},
    "gpt2": {
        "n_inner": Entry(192, "error", "it is not read: the width of the feed-forward is 4 * `n_embd` (convert_gpt2.py:15)"),
        "layer_norm_epsilon": Entry(1e-5, "differs", "it is not read: every norm has 1e-5 (gpt2_backbone.py:118)"),
    },
    "bert": {
        "hidden_act": Entry("gelu_new", "differs", "GELU is its tanh approximation (bert_backbone.py:131); `gelu` is the exact one"),
        "layer_norm_eps": Entry(1e-12, "differs", "it is not read: every norm has 1e-12 (bert_backbone.py:117)"),
        "architectures": Entry(
            ["BertModel"], "error", "a `BertForMaskedLM` has no pooler, which is read (convert_bert.py:150); its head is not"
        ),
    },
    "roberta": {
        "type_vocab_size": Entry(0, "differs", "the row of token types is not read (convert_roberta.py:30); published folders have zeros"),
        "layer_norm_eps": Entry(1e-5, "differs", "it is not read: every norm has 1e-5 (roberta_backbone.py:92)"),
    },
    "xlm-roberta": {
        "layer_norm_eps": Entry(1e-5, "differs", "it is not read: every norm has 1e-5 (roberta_backbone.py:92)"),
    },
    "distilbert": {},
}  # fmt: skip
# no converter
REFUSED = (
    "phi3", "olmo2", "ministral", "olmo3", "glm", "glm4", "stablelm", "starcoder2", "seed_oss", "exaone4", "ernie4_5", "helium", "gpt_neo",
    "opt", "camembert",
)  # fmt: skip


def table() -> str:
    """The table of docs/drop-in.md: by family, the entries with which its folder conforms, and why its own ones do not."""
    rows = ["| folder | entry | conforms with | its own value |", "|---|---|---|---|"]
    for family, entries in FOLDERS.items():
        rows += [f"| {family} | `{name}` | {_shown(name, entry.value)} | {entry.status}: {entry.why} |" for name, entry in entries.items()]
        rows += [] if entries else [f"| {family} | | | conforms |"]
    rows += [f"| {family} | | | refused: there is no converter |" for family in REFUSED]
    return "\n".join(rows) + "\n"


def _shown(name: str, value: Any) -> str:
    """An entry's value in a few words."""
    words = {"layer_types": "five windows, then none", "rope_parameters": "those of type default", "architectures": "`BertModel`"}
    return words.get(name) or (str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value))
