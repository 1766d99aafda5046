"""What is asked of KerasHub's decoders: choices of configs, folders of Hugging Face, and what comes of each.

Which entries a family's own folder needs changed is in `hub_folders`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SIZES: dict[str, Any] = {
    "source_vocabulary": 23, "target_vocabulary": 23, "model_width": 24, "heads": 4, "key_value_heads": 2, "key_size": 6, "value_size": 6,
    "feed_forward_width": 14, "decoder_layers": 2, "padding_id": None, "epsilon": 1e-6, "score_scale": None, "layer_pattern": ("global",),
}  # fmt: skip
# family -> its preset, and what its config has besides
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
PADDED = np.arange(LENGTH) >= np.array([[0], [4], [1]])  # on the left; the first row has no padding
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
    """A row of the table: what the config has besides the family's own, and how the model is run.

    backends: those on which it is measured. padding: the positions of padding are compared, not those of tokens.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    length: int = LENGTH
    padding: bool = False
    backends: tuple[str, ...] = BACKENDS[:1]


CHOICES = {
    "float32, rows padded on the left": Choice(backends=BACKENDS),
    "what stands at the padding": Choice(padding=True, backends=BACKENDS),
    "bfloat16": Choice(dtype="bfloat16"),
    "float64": Choice(dtype="float64"),
    "100 tokens": Choice(length=100),
    "epsilon 1e-3": Choice({"epsilon": 1e-3}),
    "heads of another size than width / heads": Choice({"key_size": 8, "value_size": 8}),
    "scores scaled by (width / heads)^-1/2 beside such heads": Choice({"key_size": 8, "value_size": 8, "score_scale": 6**-0.5}),
    "a window of 4 in every layer": Choice({"layer_pattern": ("local",), "window": 4}, backends=BACKENDS),
    "a window of 4 in every other layer": Choice({"layer_pattern": ("local", "global"), "window": 4}, backends=BACKENDS),
    "a window of 4 in five layers of six": Choice({"layer_pattern": SIX, "window": 4, "decoder_layers": 7}, backends=BACKENDS),
    "another base of rotations": Choice({"rotary_base": 500.0}),
    **{f"{kind} scaling": Choice({"rotary_scaling": scaling}) for kind, scaling in SCALINGS.items()},
    "rotation of a part of each head": Choice({"rotary_fraction": 0.34}),
    "a layer that does not rotate": Choice({"rotary_pattern": (True, False)}),
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
    """A cell or several in which KerasHub gives other numbers, where, and why. outcome: differs, as float32 or fails."""

    choice: str
    families: tuple[str, ...]
    outcome: str
    why: str
    backends: tuple[str, ...] = BACKENDS[:1]


FUSED = ("Llama", "Mistral", "Qwen 2", "Qwen 3", "Phi-3", "SmolLM3")
DIFFERENCES = (
    Difference(
        "what stands at the padding", FUSED, "differs",
        "A query that may attend to nothing gets zeros on TensorFlow, where `keras.layers.Softmax` clears masked weights, and the mean of "
        "all values by the fused operation (`fused_attention_op_available`). No token attends to these positions.",
        BACKENDS[1:],
    ),
    Difference(
        "float64", tuple(BASES), "as float32",
        "Norms, softmax, SiLU and the angles of rotations are cast to float32, whatever the dtype (`LlamaLayerNorm.call`, "
        "`LlamaTransformerDecoder.call`, `RotaryEmbedding._compute_positions`).",
    ),
    Difference(
        "epsilon 1e-3", ("Qwen 3",), "differs",
        "`Qwen3TransformerDecoder` does not pass `layer_norm_epsilon` to `Qwen3Attention` (qwen3_decoder.py:80): the norms of queries and "
        "keys have 1e-5, where the published models have 1e-6.",
    ),
    Difference(
        "epsilon 1e-3", ("Gemma", "Gemma 3"), "differs",
        "The backbones do not pass `layer_norm_epsilon` to their blocks (gemma_backbone.py:123, gemma3_backbone.py:255): only the final "
        "norm has it, the others 1e-6. Published models have 1e-6.",
    ),
    Difference(
        "scores scaled by (width / heads)^-1/2 beside such heads", ("Gemma", "Gemma 3"), "differs",
        "The blocks pass `query_head_dim_normalize=True` on, whatever they are given (gemma_decoder_block.py:68, "
        "gemma3_decoder_block.py:94). Gemma 2 27B and Gemma 3 27B have the other scale.",
    ),
    Difference(
        "a window of 4 in every layer", ("Qwen 2", "Qwen 3"), "differs",
        "The fused operation returns before the window is put into the mask (qwen_attention.py:313, qwen3_attention.py:324), so that there "
        "is none. Gemma had this mistake (keras-team/keras-hub#2186).",
        BACKENDS[1:],
    ),
    Difference(
        "linear scaling", ("Llama",), "differs",
        "`LlamaRotaryEmbedding._get_inverse_freq` (llama_rotary_embedding.py:117) does not read `position_scaling_factor`: "
        "`rope_position_scaling_factor` has no effect.",
    ),
    Difference(
        "rotation of a part of each head", ("SmolLM3",), "fails",
        "`partial_rotary_factor` shortens cosine and sine (smollm3_utils.py:50), which are then multiplied by whole heads.",
    ),
)  # fmt: skip


# what else was found and is no comparison of numbers; `hub_measured.besides` looks
BESIDES = (
    "`Llama3Backbone.get_config()` lacks `tie_word_embeddings`: a copy that is made of it has untied logits.",
    "`SmolLM3Backbone(dtype=...)` does not pass the dtype to its layers, which have that of `keras.config.dtype_policy()`.",
)


@dataclass(frozen=True)
class Folder:
    """A folder that transformers writes, read by `from_preset`: the class that wrote it, its entries and what comes of it.

    older: the entries of rotations are those of transformers 4. outcome: equal or differs.
    """

    name: str
    kind: str
    outcome: str
    entries: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    older: bool = False


# what every folder says, unless its own entries say otherwise
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
_SCALING = "Only `rope_theta` is read of `rope_parameters`; `rope_scaling`, which files of transformers 4 have, is read for llama3."
_UNREAD = "`rope_parameters` and `rope_scaling` are not read but for `rope_theta`."
FOLDERS = (
    Folder("Llama 3.1, file of transformers 5", "Llama", "differs", {"rope_parameters": _LLAMA3}, _SCALING),
    Folder("Llama 3.1, file of transformers 4", "Llama", "equal", {"rope_parameters": _LLAMA3}, older=True),
    Folder("Llama, linear scaling, file of transformers 5", "Llama", "differs", {"rope_parameters": _LINEAR | _THETA}, _SCALING),
    Folder("Llama, `attention_bias`, `mlp_bias`", "Llama", "differs", {"attention_bias": True, "mlp_bias": True},
           "The backbone has no biases, and those of the folder are not read."),
    Folder("Qwen 3, yarn scaling", "Qwen3", "differs", {"head_dim": 8, "rms_norm_eps": 1e-5, "rope_parameters": _YARN | _THETA}, _UNREAD),
    Folder("Qwen 3, a window from layer 1 on", "Qwen3", "differs",
           {"head_dim": 8, "rms_norm_eps": 1e-5, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
           "`max_window_layers` and `layer_types` are not read: every layer has the window."),
    Folder("Gemma 3, linear scaling of global layers", "Gemma3", "equal", _GEMMA_3 | {"rope_parameters": {
        "full_attention": _LINEAR | {"rope_theta": 1e6}, "sliding_attention": {"rope_type": "default"} | _THETA}}),
    Folder("SmolLM3, `attention_bias`", "SmolLM3", "differs", _SMOL | {"attention_bias": True},
           "The bias of `o_proj` has no place (smollm3_layers.py:95), and those of the folder are not read."),
    Folder("SmolLM3, `use_sliding_window`", "SmolLM3", "differs", _SMOL | {"use_sliding_window": True, "sliding_window": 4},
           "`layer_types` is kept and has no effect: there is no window."),
)  # fmt: skip
