"""Configs and Hugging Face checkpoints on which KerasHub's decoders are compared, with the outcome of each.

`hub_folders` has the entries that a family's own folder needs changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SIZES: dict[str, Any] = {
    "source_vocabulary": 23, "target_vocabulary": 23, "model_width": 24, "heads": 4, "key_value_heads": 2, "key_size": 6, "value_size": 6,
    "feed_forward_width": 14, "decoder_layers": 2, "padding_id": None, "epsilon": 1e-6, "score_scale": None, "layer_pattern": ("global",),
}  # fmt: skip
# family -> its preset and further config fields
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama2_7b", {}),
    "Mistral": ("llama2_7b", {}),
    "Qwen 2": ("llama2_7b", {"query_key_value_bias": True}),
    "Qwen 3": ("qwen3_600m", {"epsilon": 1e-5}),
    "Gemma": ("gemma2_2b", {"norm_placement": "pre", "score_cap": None, "logit_cap": None}),
    "Gemma 3": ("gemma3_1b", {}),
    "Phi-3": ("llama2_7b", {}),
    "SmolLM3": ("llama2_7b", {"tie_logits": True}),
}
BACKENDS = ("tensorflow", "jax", "torch")
LENGTH = 12
PADDED = np.arange(LENGTH) >= np.array([[0], [4], [1]])  # left padding; the first row has none
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear", "factor": 4.0},
    "llama3": {"kind": "llama3", "factor": 8.0, "original_length": 32, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0},
    "yarn": {"kind": "yarn", "factor": 4.0, "original_length": 8, "beta_fast": 0.6, "beta_slow": 0.05, "truncate": True,
             "attention_factor": 1.15},
    "longrope": {"kind": "longrope", "original_length": 8, "short_factors": [1.0, 1.2, 1.5], "long_factors": [1.0, 3.0, 7.0],
                 "attention_factor": 1.2},
    "dynamic": {"kind": "dynamic", "factor": 3.0, "original_length": 8},
}  # fmt: skip
SIX = ("local", "local", "local", "local", "local", "global")


@dataclass(frozen=True)
class Choice:
    """A row of the table: config fields in addition to the family's own, and how the model runs.

    backends: where it is measured. padding: compares the padding positions instead of the tokens.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    length: int = LENGTH
    padding: bool = False
    backends: tuple[str, ...] = BACKENDS[:1]


CHOICES = {
    "float32, rows padded on the left": Choice(backends=BACKENDS),
    "outputs at the padding": Choice(padding=True, backends=BACKENDS),
    "bfloat16": Choice(dtype="bfloat16"),
    "float64": Choice(dtype="float64"),
    "100 tokens": Choice(length=100),
    "epsilon 1e-3": Choice({"epsilon": 1e-3}),
    "head size other than width / heads": Choice({"key_size": 8, "value_size": 8}),
    "the same, scores scaled by (width / heads)^-1/2": Choice({"key_size": 8, "value_size": 8, "score_scale": 6**-0.5}),
    "a window of 4 in every layer": Choice({"layer_pattern": ("local",), "window": 4}, backends=BACKENDS),
    "a window of 4 in every other layer": Choice({"layer_pattern": ("local", "global"), "window": 4}, backends=BACKENDS),
    "a window of 4 in five layers of six": Choice({"layer_pattern": SIX, "window": 4, "decoder_layers": 7}, backends=BACKENDS),
    "another rotary base": Choice({"rotary_base": 500.0}),
    **{f"{kind} scaling": Choice({"rotary_scaling": scaling}) for kind, scaling in SCALINGS.items()},
    "partial rotation": Choice({"rotary_fraction": 0.34}),
    "a layer without rotation": Choice({"rotary_pattern": (True, False)}),
    "biases of query, key and value": Choice({"query_key_value_bias": True}),
    "bias of attention's output": Choice({"query_key_value_bias": True, "attention_output_bias": True}),
    "biases of the feed-forward": Choice({"feed_forward_bias": True}),
    "norms of queries and keys": Choice({"query_key_norm": "head"}),
    "sandwich norms": Choice({"norm_placement": "sandwich"}),
    "caps of scores and logits": Choice({"score_cap": 2.0, "logit_cap": 3.0}),
    "tied logits": Choice({"tie_logits": True}),
    "untied logits": Choice({"tie_logits": False}),
}


@dataclass(frozen=True)
class Difference:
    """Cells in which KerasHub's numbers differ, on which backends, and why. outcome: differs, as float32 or fails."""

    choice: str
    families: tuple[str, ...]
    outcome: str
    why: str
    backends: tuple[str, ...] = BACKENDS[:1]


FUSED = ("Llama", "Mistral", "Qwen 2", "Qwen 3", "Phi-3", "SmolLM3")
DIFFERENCES = (
    Difference(
        "outputs at the padding", FUSED, "differs",
        "A query that may attend to nothing gets zeros on TensorFlow, where `keras.layers.Softmax` clears masked weights, but the mean of "
        "all values from the fused operation (`fused_attention_op_available`). No token attends to these positions.",
        BACKENDS[1:],
    ),
    Difference(
        "float64", tuple(BASES), "as float32",
        "Norms, softmax, SiLU and the angles of rotations are cast to float32 in every dtype (`LlamaLayerNorm.call`, "
        "`LlamaTransformerDecoder.call`, `RotaryEmbedding._compute_positions`).",
    ),
    Difference(
        "epsilon 1e-3", ("Qwen 3",), "differs",
        "`Qwen3TransformerDecoder` does not pass `layer_norm_epsilon` to `Qwen3Attention` (qwen3_decoder.py:80): the norms of queries and "
        "keys use 1e-5; the published models use 1e-6.",
    ),
    Difference(
        "epsilon 1e-3", ("Gemma", "Gemma 3"), "differs",
        "The backbones do not pass `layer_norm_epsilon` to their blocks (gemma_backbone.py:123, gemma3_backbone.py:255): only the final "
        "norm uses it, the others use 1e-6, as published models do.",
    ),
    Difference(
        "the same, scores scaled by (width / heads)^-1/2", ("Gemma", "Gemma 3"), "differs",
        "The blocks always pass on `query_head_dim_normalize=True` (gemma_decoder_block.py:68, gemma3_decoder_block.py:94). Gemma 2 27B "
        "and Gemma 3 27B use the other scale.",
    ),
    Difference(
        "a window of 4 in every layer", ("Qwen 2", "Qwen 3"), "differs",
        "The fused operation returns before the window enters the mask (qwen_attention.py:313, qwen3_attention.py:324), so there is no "
        "window. Gemma had this bug (keras-team/keras-hub#2186).",
        BACKENDS[1:],
    ),
    Difference(
        "linear scaling", ("Llama",), "differs",
        "`LlamaRotaryEmbedding._get_inverse_freq` (llama_rotary_embedding.py:117) ignores `position_scaling_factor`, so "
        "`rope_position_scaling_factor` has no effect.",
    ),
    Difference(
        "partial rotation", ("SmolLM3",), "fails",
        "`partial_rotary_factor` shortens cosine and sine (smollm3_utils.py:50), which then multiply whole heads.",
    ),
)  # fmt: skip


# findings other than numerical comparisons; `hub_measured.besides` checks them
BESIDES = (
    "`Llama3Backbone.get_config()` lacks `tie_word_embeddings`: a copy made from it has untied logits.",
    "`SmolLM3Backbone(dtype=...)` does not pass the dtype to its layers, which use `keras.config.dtype_policy()`.",
)


@dataclass(frozen=True)
class Folder:
    """A checkpoint that transformers writes and `from_preset` reads: its class, its entries and the outcome.

    older: its rotary entries are those of transformers 4. outcome: equal or differs.
    """

    name: str
    kind: str
    outcome: str
    entries: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    older: bool = False


# default entries of every folder
ENTRIES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 14, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "bos_token_id": 1,
    "max_position_embeddings": 64, "pad_token_id": None, "eos_token_id": 2,
}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}  # fmt: skip
_LINEAR, _YARN = {"rope_type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
_THETA = {"rope_theta": 10000.0}
_GEMMA_3 = {"num_hidden_layers": 7, "head_dim": 8, "tie_word_embeddings": True, "sliding_window": 4,
            "query_pre_attn_scalar": 8}  # fmt: skip
_SMOL = {"tie_word_embeddings": True, "no_rope_layer_interval": 2}
_SCALING = "reads only `rope_theta` of `rope_parameters`"
_UNREAD = "reads only `rope_theta`"
FOLDERS = (
    Folder("Llama 3.1, file of transformers 5", "Llama", "differs", {"rope_parameters": _LLAMA3}, _SCALING),
    Folder("Llama 3.1, file of transformers 4", "Llama", "equal", {"rope_parameters": _LLAMA3}, older=True),
    Folder("Llama, linear scaling, file of transformers 5", "Llama", "differs", {"rope_parameters": _LINEAR | _THETA}, _SCALING),
    Folder("Llama, `attention_bias`, `mlp_bias`", "Llama", "differs", {"attention_bias": True, "mlp_bias": True},
           "ignores biases"),
    Folder("Qwen 3, yarn scaling", "Qwen3", "differs", {"head_dim": 8, "rms_norm_eps": 1e-5, "rope_parameters": _YARN | _THETA}, _UNREAD),
    Folder("Qwen 3, a window from layer 1 on", "Qwen3", "differs",
           {"head_dim": 8, "rms_norm_eps": 1e-5, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
           "ignores `max_window_layers`, `layer_types`"),
    Folder("Gemma 3, linear scaling of global layers", "Gemma3", "equal", _GEMMA_3 | {"rope_parameters": {
        "full_attention": _LINEAR | {"rope_theta": 1e6}, "sliding_attention": {"rope_type": "default"} | _THETA}}),
    Folder("SmolLM3, `attention_bias`", "SmolLM3", "differs", _SMOL | {"attention_bias": True},
           "ignores biases; no bias of `o_proj` (smollm3_layers.py:95)"),
    Folder("SmolLM3, `use_sliding_window`", "SmolLM3", "differs", _SMOL | {"use_sliding_window": True, "sliding_window": 4},
           "keeps `layer_types` without effect: no window"),
)  # fmt: skip
