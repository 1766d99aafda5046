"""Decoders with mixtures of experts.

Files have one tensor for each expert and layer, as the library writes them; the classes keep the
experts of a layer in one tensor, gate and hidden layer together, and can write that too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from .. import tables
from ..tables import Part, Row
from . import decoder, rotary, windows
from .family import ONLY, Entry, Joint, head_sizes

_IN = "feed_forward.experts"
_GATE, _HIDDEN = f"{_IN}.gate", f"{_IN}.hidden"
_HEADS = head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False)
# entries that matter only in training
TRAINING = {
    **dict.fromkeys(("output_router_logits", "router_aux_loss_coef"), "training only: the recipe's router_aux_weight balances experts"),
    "router_jitter_noise": "training only: routers here read their input without noise",
}
# the experts of a layer in one tensor
_TOGETHER = tables.within("layers.*", "decoder.layers.*", (
    Row("mlp.experts.gate_up_proj", (Part(f"{_GATE}.kernel", "x m d"), Part(f"{_HIDDEN}.kernel", "x m d")), axis=1),
    Row("mlp.experts.down_proj", (Part(f"{_IN}.output.kernel", "x d m"),)),
))  # fmt: skip
_SINGLY = decoder.feed_forward(native="mlp.experts.*", canonical=_IN, width="m")
_ROUTER = decoder.dense("mlp.gate", "feed_forward.router", "x d")


def count(name: str, default: int) -> Joint:
    """Returns the joint of the entry for the number of experts."""

    def read(entries: Mapping[str, Any]) -> dict[str, Any]:
        if not is_integer(entries[name]) or entries[name] < 1:
            raise ValueError(f"{name} must be an integer of at least 1; got {entries[name]!r:.100}")
        return {"experts": entries[name]}

    return Joint({name: default}, {"experts": name}, read, lambda config, said: {name: config.experts}, "")


def per_token(default: int) -> Entry:
    """Returns the entry for the number of experts that a token chooses."""
    return Entry("num_experts_per_tok", default, ("experts_per_token",))


def width(name: str, default: int) -> Entry:
    """Returns the entry for the width of experts in a family without dense layers."""
    return Entry(name, default, ("expert_width", "feed_forward_width"))


def _whole(name: str, value: Any) -> int:
    if not is_integer(value):
        raise ValueError(f"{name} must be an integer; got {value!r:.100}")
    return int(value)


def _mixed(config: TransformerConfig) -> list[bool]:
    return [config.has_experts(layer) for layer in range(config.decoder_layers)]


def _layers(entries: Mapping[str, Any]) -> range:
    return range(len(windows.layer_kinds({**entries, "layer_types": None}, lambda layers: ["global"] * layers)))


def _every_some(entries: Mapping[str, Any]) -> dict[str, Any]:
    step, dense = _whole("decoder_sparse_step", entries["decoder_sparse_step"]), entries["mlp_only_layers"] or []
    if step == 0 or not isinstance(dense, list) or not all(map(is_integer, dense)):
        wanted = "decoder_sparse_step must not be 0, and mlp_only_layers must be a list of layers"
        raise ValueError(f"{wanted}; got {step} and {dense!r:.100}")
    return {"expert_pattern": [layer not in dense and (layer + 1) % step == 0 for layer in _layers(entries)]}


def _but_some(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    return {"decoder_sparse_step": 1, "mlp_only_layers": [layer for layer, mixed in enumerate(_mixed(config)) if not mixed]}


def _after_some(entries: Mapping[str, Any]) -> dict[str, Any]:
    first = _whole("first_k_dense_replace", entries["first_k_dense_replace"])
    return {"expert_pattern": [layer >= first for layer in _layers(entries)]}


def _before_experts(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    return {"first_k_dense_replace": [*_mixed(config), True].index(True)}


def _of_each(entries: Mapping[str, Any]) -> dict[str, Any]:
    count, width = (_whole(name, entries[name]) for name in ("n_shared_experts", "moe_intermediate_size"))
    return {"shared_width": count * width}


def _alternate(entries: Mapping[str, Any], layers: int) -> Sequence[str]:
    """Gives a window to every other layer before `max_window_layers` (Qwen2-MoE)."""
    last = _whole("max_window_layers", entries["max_window_layers"]) if entries["use_sliding_window"] else 0
    return ["global" if layer % 2 or layer >= last else "local" for layer in range(layers)]


_DENSE_LAYERS = Joint(
    {"decoder_sparse_step": 1, "mlp_only_layers": None}, {"expert_pattern": "mlp_only_layers and decoder_sparse_step"},
    _every_some, _but_some, "every `decoder_sparse_step`th layer has experts, except `mlp_only_layers`",
)  # fmt: skip

# Jiang et al. 2024
MIXTRAL = decoder.family(
    "Mixtral", "mixtral", "Mixtral",
    fixed={"router_scores": "softmax", "router_weight_dtype": "float32"},
    entries=decoder.entries(
        width("intermediate_size", 14336), per_token(2),
        without=("intermediate_size",),
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, rms_norm_eps=1e-5,
    ),
    joints=(_HEADS, rotary.flat(1000000.0, 131072), windows.everywhere(None), count("num_local_experts", 8)),
    ignored=TRAINING,
    aliases={"num_experts": "num_local_experts"},
    together=_TOGETHER,
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(inputs=False, output=False),
        *decoder.dense("block_sparse_moe.gate", "feed_forward.router", "x d"),
        *decoder.feed_forward(native="block_sparse_moe.experts.*", canonical=_IN, width="m", names=("w1", "w3", "w2")),
    ),
    older={"mlp.gate.weight": "block_sparse_moe.gate.weight"},
)  # fmt: skip

_QWEN = (Entry("norm_topk_prob", False, ("router_normalize",)), Entry("moe_intermediate_size", 1408, ("expert_width",)))

# Qwen Team 2024: a gated expert for all tokens, and dense layers
QWEN2_MOE = decoder.family(
    "Qwen2-MoE", "qwen2_moe", "Qwen2Moe",
    fixed={"router_scores": "softmax", "shared_gate": True},
    entries=decoder.entries(
        *_QWEN, per_token(4),
        Entry("qkv_bias", True, ("query_key_value_bias",)),
        Entry("shared_expert_intermediate_size", 5632, ("shared_width",)),
        vocab_size=151936, hidden_size=2048, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=16,
        intermediate_size=5632,
    ),
    joints=(
        _HEADS, rotary.flat(10000.0, 32768), count("num_experts", 60), _DENSE_LAYERS,
        windows.by_layer(
            {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
            _alternate,
            "`layer_types` sets which layers have a window; default: every other one before `max_window_layers`, if `use_sliding_window`",
            allowed=lambda entries: entries["use_sliding_window"],
        ),
    ),
    ignored=TRAINING,
    together=_TOGETHER,
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(output=False), *decoder.feed_forward(), *_ROUTER, *_SINGLY,
        *decoder.feed_forward(native="mlp.shared_expert", canonical="feed_forward.shared", width="w"),
        *decoder.dense("mlp.shared_expert_gate", "feed_forward.shared_gate", "1 d"),
    ),
)  # fmt: skip

# Yang et al. 2025: each head's queries and keys are normalized
QWEN3_MOE = decoder.family(
    "Qwen3-MoE", "qwen3_moe", "Qwen3Moe",
    fixed={"router_scores": "softmax", "query_key_norm": "head"},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS, _QWEN[0], per_token(8),
        Entry("moe_intermediate_size", 768, ("expert_width",)),
        vocab_size=151936, hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, num_key_value_heads=4, intermediate_size=6144,
    ),
    joints=(
        _HEADS, rotary.flat(10000.0, 32768), windows.everywhere(4096, "use_sliding_window"), count("num_local_experts", 128),
        _DENSE_LAYERS,
    ),
    ignored=TRAINING | {"max_window_layers": "the class does not read it"},
    aliases={"num_experts": "num_local_experts"},
    prefixes=("transformer.",),  # of Qwen3MoeForQuestionAnswering
    together=_TOGETHER,
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(), *decoder.HEAD_NORMS, *decoder.feed_forward(), *_ROUTER, *_SINGLY,
    ),
)  # fmt: skip

# Muennighoff et al. 2024: queries and keys are normalized over all heads
OLMOE = decoder.family(
    "OLMoE", "olmoe", "Olmoe",
    fixed={"router_scores": "softmax", "query_key_norm": "width"},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS, _QWEN[0], width("intermediate_size", 2048), per_token(8),
        decoder.CLIP, without=("intermediate_size",),
        vocab_size=50304, hidden_size=2048, num_hidden_layers=16, num_attention_heads=16, rms_norm_eps=1e-5,
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads"), rotary.flat(10000.0, 4096), count("num_experts", 64)),
    ignored=TRAINING,
    aliases={"num_local_experts": "num_experts"},
    without=("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    together=_TOGETHER,
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.WIDTH_NORMS, *_ROUTER, *_SINGLY),
)  # fmt: skip

# GLM-4.5 (GLM Team 2025): the first layers are dense, the choice has a bias, and groups of experts
# may be chosen first. Layers that predict further tokens belong to another model
GLM4_MOE = decoder.family(
    "GLM-4.5", "glm4_moe", "Glm4Moe",
    fixed={
        "router_scores": "sigmoid", "selection_bias": True, "router_epsilon": 1e-20, "router_group_score": "best_two",
        "router_group_mask": "minus_infinity", **dict.fromkeys(("router_product_dtype", "router_weight_dtype"), "float32"),
    },
    entries=decoder.entries(
        Entry("attention_bias", False, ("query_key_value_bias",)),
        Entry("norm_topk_prob", True, ("router_normalize",)),
        Entry("routed_scaling_factor", 1.0, ("router_scale",)),
        Entry("n_group", 1, ("router_groups",)),
        Entry("topk_group", 1, ("router_groups_kept",)),
        per_token(8), _QWEN[1],
        vocab_size=151552, hidden_size=4096, num_hidden_layers=46, num_attention_heads=96, num_key_value_heads=8,
        intermediate_size=10944, rms_norm_eps=1e-5,
    ),
    joints=(
        _HEADS, rotary.flat(10000.0, 131072, partial=0.5), count("n_routed_experts", 128),
        Joint(
            {"first_k_dense_replace": 1}, {"expert_pattern": "first_k_dense_replace"}, _after_some, _before_experts,
            "the first layers, of this number, have no experts",
        ),
        Joint(
            {"n_shared_experts": 1}, {"shared_width": "n_shared_experts x moe_intermediate_size"}, _of_each,
            lambda config, said: {"n_shared_experts": config.shared_width // (config.expert_width or 1)},
            "experts for all tokens, computed as one",
        ),
        decoder.head_norms("use_qk_norm"),
    ),
    ignored=TRAINING | {"num_nextn_predict_layers": "the class does not predict further tokens"},
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    without=("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    marked="eh_proj.weight",
    together=_TOGETHER,
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(output=False), *decoder.HEAD_NORMS, *decoder.feed_forward(), *_ROUTER,
        Row("mlp.gate.e_score_correction_bias", (Part("feed_forward.router.selection_bias", "x"),)),
        *_SINGLY,
        *decoder.feed_forward(native="mlp.shared_experts", canonical="feed_forward.shared", width="w"),
    ),
)  # fmt: skip

# gpt-oss (OpenAI 2025): a sink for each head, and experts with biases and limits, whose gate and
# hidden layer alternate. Kernels store inputs before outputs
GPT_OSS = decoder.family(
    "gpt-oss", "gpt_oss", "GptOss",
    fixed={
        "attention_sinks": "all", "activation": "gelu_sigmoid", "hidden_offset": 1.0, "feed_forward_bias": True,
        "norm_cast_before_scale": False, "router_scores": "chosen_softmax", "router_bias": True, "router_normalize": False,
        "router_score_dtype": "model",
    },
    entries=decoder.entries(
        Entry("attention_bias", True, ("query_key_value_bias", "attention_output_bias")),
        Entry("swiglu_limit", 7.0, ("gate_limit",)),
        width("intermediate_size", 2880), per_token(4),
        act="", without=("intermediate_size",),
        vocab_size=201088, hidden_size=2880, num_hidden_layers=36, num_attention_heads=64, num_key_value_heads=8, rms_norm_eps=1e-5,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 64}, divides=False),
        rotary.flat(150000.0, 131072, usual={
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        }),
        windows.by_layer(
            {"sliding_window": 128},
            lambda entries, layers: ["global" if layer % 2 else "local" for layer in range(layers)],
            "`layer_types` sets which layers have a window; default: every other one, from the first",
            unused=128,  # the class fails without it
        ),
        count("num_local_experts", 128),
    ),
    only={**ONLY, "swiglu_alpha": 1.702},
    ignored=TRAINING | {
        "hidden_act": "the class has its own activation", "experts_per_token": "the class reads `num_experts_per_tok`",
        "initial_context_length": "the class reads `rope_parameters`",
    },
    aliases={"num_experts": "num_local_experts"},
    without=("ForQuestionAnswering",),
    table=decoder.table(
        *decoder.NORMS, *decoder.attention(), Row("self_attn.sinks", (Part("self_attention.sink", "h"),)),
        *decoder.dense("mlp.router", "feed_forward.router", "x d", "x"),
        Row("mlp.experts.gate_up_proj", (Part(f"{_GATE}.kernel", "x d m"), Part(f"{_HIDDEN}.kernel", "x d m")), 2, groups="m"),
        Row("mlp.experts.gate_up_proj_bias", (Part(f"{_GATE}.bias", "x m"), Part(f"{_HIDDEN}.bias", "x m")), 1, groups="m"),
        Row("mlp.experts.down_proj", (Part(f"{_IN}.output.kernel", "x m d"),)),
        Row("mlp.experts.down_proj_bias", (Part(f"{_IN}.output.bias", "x d"),)),
    ),
)  # fmt: skip
