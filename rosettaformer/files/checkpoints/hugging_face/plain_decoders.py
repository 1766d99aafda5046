"""Decoder families that their declaration describes completely.

Each has a class without a head and one with logits; most also have classes with other heads.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from reference_numpy.fields import is_integer, is_number

from . import decoder, rotary, windows
from .decoder import scale
from .family import ONLY, Entry, head_sizes

_HEADS = head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False)
_HEADS_OF_128 = head_sizes("hidden_size", "num_attention_heads", {"head_dim": 128}, divides=False)
_OF_QUESTIONS = ("transformer.",)  # prefix in the ForQuestionAnswering classes

# Touvron et al. 2023; Grattafiori et al. 2024
LLAMA = decoder.family(
    "Llama", "llama", "Llama",
    entries=decoder.entries(
        decoder.ATTENTION_BIAS, decoder.MLP_BIAS,
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
        intermediate_size=11008,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}), rotary.flat(10000.0, 2048),
    ),
    only={**ONLY, "rope_interleaved": False},
    ignored={"is_llama_config": "a marker for other programs"},
    prefixes=_OF_QUESTIONS,
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.feed_forward(biases=True)),
)  # fmt: skip

# Jiang et al. 2023; a window in all layers or in none
MISTRAL = decoder.family(
    "Mistral", "mistral", "Mistral",
    entries=decoder.entries(
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, intermediate_size=14336,
    ),
    joints=(_HEADS, rotary.flat(10000.0, 131072), windows.everywhere(4096)),
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(inputs=False, output=False), *decoder.feed_forward(),
    ),
)  # fmt: skip

# Mistral AI 2024: Mistral with a window in some layers
MINISTRAL = decoder.family(
    "Ministral", "ministral", "Ministral",
    entries=MISTRAL.entries,
    joints=(
        _HEADS,
        rotary.flat(10000.0, 131072),
        windows.by_layer(
            {"sliding_window": 4096},
            lambda entries, layers: ["global" if entries["sliding_window"] is None else "local"] * layers,
            "`layer_types` sets which layers have a window; default: all, if `sliding_window` is set",
            unused=4096,  # the class fails without it
        ),
    ),
    prefixes=_OF_QUESTIONS,
    table=MISTRAL.table,
)  # fmt: skip

# Yang et al. 2024, including 2.5: queries, keys and values have biases
_QWEN: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 22016,
}  # fmt: skip
QWEN2 = decoder.family(
    "Qwen 2", "qwen2", "Qwen2",
    fixed={"query_key_value_bias": True},
    entries=decoder.entries(**_QWEN),
    joints=(_HEADS, rotary.flat(10000.0, 32768), windows.QWEN),
    only={**ONLY, "use_mrope": False},
    prefixes=_OF_QUESTIONS,
    table=decoder.table(*decoder.NORMS, *decoder.attention(output=False), *decoder.feed_forward()),
)  # fmt: skip

# Yang et al. 2025: each head's queries and keys are normalized
QWEN3 = decoder.family(
    "Qwen 3", "qwen3", "Qwen3",
    fixed={"query_key_norm": "head"},
    entries=decoder.entries(decoder.ATTENTION_BIAS, **_QWEN),
    joints=(_HEADS_OF_128, rotary.flat(10000.0, 32768), windows.QWEN),
    prefixes=_OF_QUESTIONS,
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(), *decoder.HEAD_NORMS, *decoder.feed_forward(),
    ),
)  # fmt: skip

# Gemma Team 2024: norms multiply by 1 + scale
GEMMA = decoder.family(
    "Gemma", "gemma", "Gemma",
    fixed=decoder.GEMMA,
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        words=decoder.TANH | {"gelu": "gelu_tanh"},  # the first files say gelu but mean its approximation
        vocab_size=256000, hidden_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=16, intermediate_size=24576, tie_word_embeddings=True,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 256}, divides=False),
        rotary.flat(10000.0, 8192),
    ),
    only={**ONLY, "use_bidirectional_attention": (None, False)},
    ignored={"hidden_activation": "the class reads `hidden_act`"},
    without=("ForQuestionAnswering",),
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.feed_forward()),
)  # fmt: skip

# OLMo Team 2024: norms follow the sub-layers; queries and keys are normalized over all heads
OLMO2 = decoder.family(
    "OLMo 2", "olmo2", "Olmo2",
    fixed={"norm_placement": "after", "query_key_norm": "width", "norm_cast_before_scale": False},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        vocab_size=50304, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
        intermediate_size=11008, rms_norm_eps=1e-5,
    ),
    joints=(_HEADS, rotary.flat(10000.0, 2048)),
    without=("ForTokenClassification", "ForQuestionAnswering"),
    table=decoder.table(
        *decoder.attention(), *decoder.WIDTH_NORMS, *decoder.AFTER, *decoder.feed_forward(),
    ),
)  # fmt: skip

# OLMo Team 2025: OLMo 2 with a window in all but the last of every four layers; RoPE scaling is for
# layers without a window
OLMO3 = decoder.family(
    "OLMo 3", "olmo3", "Olmo3",
    fixed=OLMO2.fixed,
    entries=OLMO2.entries,
    joints=(
        _HEADS,
        rotary.by_layer_type(500000.0, 500000.0, 2048, local=None),
        windows.by_layer(
            {"sliding_window": 4096},
            lambda entries, layers: ["local" if (layer + 1) % 4 else "global" for layer in range(layers)],
            "`layer_types` sets which layers have a window; default: all but the last of every four",
            unused=4096,  # the class fails without it
        ),
    ),
    only={**ONLY, "partial_rotary_factor": (None, 1.0)},
    without=("ForTokenClassification", "ForQuestionAnswering"),
    table=OLMO2.table,
)  # fmt: skip

# GLM-4 of 2024 (GLM Team 2024): partial rotation of adjacent features; gate_up_proj stacks the gate
# and the hidden layer
GLM = decoder.family(
    "GLM", "glm", "Glm",
    fixed={"rotary_layout": "interleaved"},
    entries=decoder.entries(
        Entry("attention_bias", True, ("query_key_value_bias",)),
        vocab_size=151552, hidden_size=4096, num_hidden_layers=40, num_attention_heads=32,
        num_key_value_heads=2, intermediate_size=13696, rms_norm_eps=1.5625e-7,
    ),
    joints=(_HEADS_OF_128, rotary.flat(10000.0, 131072, partial=0.5)),
    without=("ForQuestionAnswering",),
    table=decoder.table(*decoder.NORMS, *decoder.attention(output=False), *decoder.GATE_AND_HIDDEN),
)  # fmt: skip

# GLM-4 of 2025 (GLM Team 2025): GLM with an additional norm after each sub-layer
GLM4 = decoder.family(
    "GLM-4-0414", "glm4", "Glm4",
    fixed={"rotary_layout": "interleaved", "norm_placement": "sandwich"},
    entries=GLM.entries,
    joints=GLM.joints,
    without=("ForQuestionAnswering",),
    table=decoder.table(
        scale("input_layernorm", "self_attention_norm"),
        scale("post_self_attn_layernorm", "self_attention_output_norm"),
        scale("post_attention_layernorm", "feed_forward_norm"),
        scale("post_mlp_layernorm", "feed_forward_output_norm"),
        *decoder.attention(output=False),
        *decoder.GATE_AND_HIDDEN,
    ),
)  # fmt: skip

# Bellagente et al. 2024: norms have offsets, and only part of each head rotates
STABLELM = decoder.family(
    "StableLM", "stablelm", "StableLm",
    fixed={**decoder.LAYER_NORM, "query_key_norm_offset": False},
    entries=decoder.entries(
        Entry("use_qkv_bias", False, ("query_key_value_bias",)),
        epsilon="layer_norm_eps",
        vocab_size=50304, hidden_size=2560, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, intermediate_size=6912, layer_norm_eps=1e-5,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads"), rotary.flat(10000.0, 4096, partial=0.25),
        decoder.placement("use_parallel_residual", False, "parallel_shared"), decoder.head_norms("qk_layernorm", "each_head"),
    ),
    only={**ONLY, "hidden_dropout": 0.0},  # it applies only to the feed-forward output
    ignored={"norm_eps": "the class reads `layer_norm_eps`"},
    without=("ForQuestionAnswering",),
    table=decoder.table(
        *decoder.LAYER_NORMS, *decoder.attention(output=False), *decoder.feed_forward(),
        decoder.scale("self_attn.q_layernorm.norms.*", "self_attention.query_norm", "k"),
        decoder.scale("self_attn.k_layernorm.norms.*", "self_attention.key_norm", "k"),
        last=decoder.layer_norm("norm", "decoder.final_norm"),
    ),
)  # fmt: skip

# ByteDance Seed 2025: queries, keys and values have biases
SEED_OSS = decoder.family(
    "Seed-OSS", "seed_oss", "SeedOss",
    entries=decoder.entries(
        Entry("attention_bias", True, ("query_key_value_bias",)),
        Entry("attention_out_bias", False, ("attention_output_bias",)),
        decoder.MLP_BIAS,
        Entry("residual_dropout", 0.1, ("dropout_rate",), note=decoder.NOT_EMBEDDED),
        vocab_size=155136, hidden_size=4096, num_hidden_layers=64, num_attention_heads=80,
        num_key_value_heads=8, intermediate_size=27648, attention_dropout=0.1,
    ),
    joints=(_HEADS_OF_128, rotary.flat(10000.0, 524288)),
    prefixes=_OF_QUESTIONS,
    table=LLAMA.table,
)  # fmt: skip

# the model without experts (Baidu 2025): adjacent features rotate together
ERNIE4_5 = decoder.family(
    "ERNIE 4.5", "ernie4_5", "Ernie4_5",
    fixed={"rotary_layout": "interleaved", "attention_dropout_rate": 0.0},
    entries=decoder.entries(
        Entry("use_bias", False, ("query_key_value_bias", "attention_output_bias", "feed_forward_bias")),
        without=("attention_dropout",),
        vocab_size=103424, hidden_size=1024, num_hidden_layers=18, num_attention_heads=16,
        num_key_value_heads=2, intermediate_size=3072, rms_norm_eps=1e-5, tie_word_embeddings=True,
    ),
    joints=(_HEADS_OF_128, rotary.flat(500000.0, 131072)),
    ignored=dict.fromkeys(
        ("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
        "the class has no dropout",
    ),
    classes={"Ernie4_5ForCausalLM": ("language_head",), "Ernie4_5Model": ()},
    table=LLAMA.table,
)  # fmt: skip

# Kyutai 2025: adjacent features rotate together
HELIUM = decoder.family(
    "Helium", "helium", "Helium",
    fixed={"rotary_layout": "interleaved", "norm_cast_before_scale": False},
    entries=decoder.entries(
        Entry("attention_bias", False, ("query_key_value_bias",)), decoder.MLP_BIAS,
        vocab_size=48000, hidden_size=2560, num_hidden_layers=24, num_attention_heads=20,
        num_key_value_heads=20, intermediate_size=7040, rms_norm_eps=1e-8,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 128}), rotary.flat(100000.0, 4096),
    ),
    without=("ForQuestionAnswering",),
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(output=False), *decoder.feed_forward(biases=True),
    ),
)  # fmt: skip

_RELU_SQUARED = {"relu2": "relu_squared", **decoder.SILU}
_WITHOUT_GATE = decoder.feed_forward(biases=True)[2:]

# Arcee AI 2025: Llama with a squared ReLU and no gate
ARCEE = decoder.family(
    "Arcee", "arcee", "Arcee",
    fixed={"gated_feed_forward": False},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS, decoder.MLP_BIAS,
        words=_RELU_SQUARED,
        vocab_size=32000, hidden_size=2560, num_hidden_layers=32, num_attention_heads=32,
        intermediate_size=18432, rms_norm_eps=1e-5,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}), rotary.flat(10000.0, 4096),
    ),
    prefixes=_OF_QUESTIONS,
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *_WITHOUT_GATE),
)  # fmt: skip

# Parmar et al. 2024: norms multiply by 1 + scale, and part of each head rotates
NEMOTRON = decoder.family(
    "Nemotron", "nemotron", "Nemotron",
    fixed={**decoder.LAYER_NORM, "norm_one_plus_scale": True, "norm_cast_before_scale": False, "gated_feed_forward": False},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS, decoder.MLP_BIAS,
        words=_RELU_SQUARED, epsilon="norm_eps",
        vocab_size=256000, hidden_size=6144, num_hidden_layers=32, num_attention_heads=48,
        intermediate_size=24576, norm_eps=1e-5,
    ),
    joints=(_HEADS, rotary.flat(10000.0, 4096, partial=0.5)),
    prefixes=_OF_QUESTIONS,
    table=decoder.table(
        *decoder.LAYER_NORMS, *decoder.attention(), *_WITHOUT_GATE,
        last=decoder.layer_norm("norm", "decoder.final_norm"),
    ),
)  # fmt: skip


_HUNYUAN_ROTARY = rotary.flat(10000.0, 2048)


def _of_alpha(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Reads rotary positions; `alpha` of a dynamic `rope_type` stretches the base once for all lengths."""
    label = "rope_scaling" if entries["rope_scaling"] else "rope_parameters"
    given = entries[label]
    if not isinstance(given, Mapping) or not given.get("alpha") or "dynamic" not in (given.get("rope_type"), given.get("type")):
        return _HUNYUAN_ROTARY.read(entries)
    alpha, size = given["alpha"], entries["head_dim"]
    base = given.get("rope_theta") or entries["rope_theta"]
    if not is_number(alpha) or alpha <= 0 or not is_number(base) or not is_integer(size) or size <= 2:
        wanted = "alpha and rope_theta must be positive numbers, and head_dim an integer above 2"
        raise ValueError(f"{label}: {wanted}; got {alpha!r:.100}, {base!r:.100} and {size!r:.100}")
    stretched = {"rope_type": "default", "rope_theta": base * alpha ** (size / (size - 2))}
    return _HUNYUAN_ROTARY.read({**entries, label: stretched})


# Tencent 2025: each head's queries and keys are normalized after their rotation
HUNYUAN = decoder.family(
    "Hunyuan", "hunyuan_v1_dense", "HunYuanDenseV1",
    fixed={"query_key_norm": "head", "query_key_norm_after_rotation": True},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        vocab_size=290943, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
        intermediate_size=11008, rms_norm_eps=1e-5,
    ),
    joints=(_HEADS, dataclasses.replace(_HUNYUAN_ROTARY, read=_of_alpha)),
    ignored=dict.fromkeys(("eod_token_id", "pretraining_tp"), "the class does not read it"),
    without=("ForTokenClassification", "ForQuestionAnswering"),
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(),
        decoder.scale("self_attn.query_layernorm", "self_attention.query_norm", "k"),
        decoder.scale("self_attn.key_layernorm", "self_attention.key_norm", "k"),
        *decoder.feed_forward(),
    ),
)  # fmt: skip

# Groeneveld et al. 2024: layer norms without parameters; queries, keys and values may be clipped
OLMO = decoder.family(
    "OLMo", "olmo", "Olmo",
    fixed={"norm": "layer", "norm_scale": False, "norm_cast_before_scale": False, "epsilon": 1e-5},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS, decoder.CLIP,
        epsilon="",
        vocab_size=50304, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008,
    ),
    joints=(_HEADS, rotary.flat(10000.0, 2048)),
    without=("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    table=decoder.table(*decoder.attention(), *decoder.feed_forward(), last=()),
)  # fmt: skip

# Adept 2023: layer norms, also of each head's queries and keys; squared ReLU without a gate
PERSIMMON = decoder.family(
    "Persimmon", "persimmon", "Persimmon",
    fixed={
        **decoder.LAYER_NORM, "gated_feed_forward": False, "feed_forward_bias": True, "query_key_value_bias": True,
        "attention_output_bias": True,
    },
    entries=decoder.entries(
        Entry("num_attention_heads", 64, ("heads", "key_value_heads")),
        words=_RELU_SQUARED, epsilon="layer_norm_eps", without=("num_attention_heads", "num_key_value_heads"),
        vocab_size=262144, hidden_size=4096, num_hidden_layers=36, intermediate_size=16384, layer_norm_eps=1e-5,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads"), rotary.flat(10000.0, 16384, partial=0.5),
        decoder.head_norms("qk_layernorm", default=True),
    ),
    only={**ONLY, "hidden_dropout": 0.0},  # it applies only to the feed-forward output
    without=("ForQuestionAnswering",),
    table=decoder.table(
        *decoder.LAYER_NORMS, *decoder.fused("self_attn.query_key_value"),
        *decoder.dense("self_attn.dense", "self_attention.output", "d (h e)", "d"),
        *decoder.layer_norm("self_attn.q_layernorm", "self_attention.query_norm", "k"),
        *decoder.layer_norm("self_attn.k_layernorm", "self_attention.key_norm", "k"),
        *decoder.dense("mlp.dense_h_to_4h", "feed_forward.hidden", "f d", "f"),
        *decoder.dense("mlp.dense_4h_to_h", "feed_forward.output", "d f", "d"),
        last=decoder.layer_norm("final_layernorm", "decoder.final_norm"),
    ),
)  # fmt: skip
