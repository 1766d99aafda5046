"""Every entry of config.json, flipped: results equal the library's, or the entry is rejected by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_folders import KINDS, all_in_float64, class_of, entries_by_field
from hugging_face_folders import Drawn, assert_close, made, ours, theirs, tokens
from kinds import conformance, every
from model_folders import edit

from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints.hugging_face.family import HARMLESS

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

SIZES = {"target_vocabulary": 31, "model_width": 24, "decoder_layers": 3, "key_value_heads": 2, "heads": 4, "feed_forward_width": 10,
         "key_size": 6, "experts": 6, "experts_per_token": 2, "expert_width": 7}  # fmt: skip
IDS = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 5}
MODELS = {
    "bert": Drawn("BertForMaskedLM", {
        "vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 10, "max_position_embeddings": 9,
    }),
    "gpt2": Drawn("GPT2LMHeadModel", {
        "vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 9, "n_inner": 10,
        "bos_token_id": 1, "eos_token_id": 2,
    }),
}  # fmt: skip
# for families that need more
OTHERS: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local", "local"], 1]], "window_size": 3, "max_position_embeddings": 9},
    "opt": {"max_position_embeddings": 9}, "biogpt": {"max_position_embeddings": 9},
    "exaone4": {"sliding_window": 3}, "olmo3": {"sliding_window": 3},
    "ministral": {"sliding_window": 3}, "stablelm": {"hidden_size": 96}, "glm": {"head_dim": 12}, "glm4": {"head_dim": 12},
    "qwen2_moe": {"mlp_only_layers": [1], "shared_expert_intermediate_size": 5}, "qwen3_moe": {"decoder_sparse_step": 2},
    "granitemoeshared": {"shared_intermediate_size": 5}, "gpt_oss": {"sliding_window": 3, "swiglu_limit": 0.7},
    "glm4_moe": {"n_group": 2, "topk_group": 2, "head_dim": 12},
    "gpt_neox": {"hidden_size": 96}, "persimmon": {"hidden_size": 48},
    "phi": {"head_dim": 12}, "nemotron": {"head_dim": 12}, "cohere2": {"sliding_window": 3},
    "gptj": {"rotary_dim": 4, "max_position_embeddings": 9}, "codegen": {"rotary_dim": 4, "max_position_embeddings": 9},
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6, "beta_fast": 0.6, "beta_slow": 0.05}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.5, 2.0, 3.0], "long_factor": [2.0, 5.0, 9.0], "factor": 3.0}
LINEAR, DYNAMIC = {"rope_type": "linear", "factor": 3.0}, {"rope_type": "dynamic", "factor": 3.0}
BAD = (
    {"rope_type": "proportional", "factor": 2.0}, {"rope_type": "default", "factor": 2.0}, {**LINEAR, "mrope_section": [1]}, [1],
    {"rope_type": 3}, {"rope_type": "linear", "factor": "3"}, {**LLAMA3, "low_freq_factor": 9.0}, 3,
    {**LINEAR, "partial_rotary_factor": 0.5},
)  # fmt: skip
ROPES: tuple[Any, ...] = (LINEAR, DYNAMIC, LLAMA3, YARN, LONGROPE, {"type": "linear", "factor": 3.0}, {"rope_theta": 70.0}, None, {}, *BAD)
NESTED = (
    *({"full_attention": one, "sliding_attention": LINEAR} for one in ROPES[:5]), {"full_attention": LINEAR, "sliding_attention": YARN},
    {"full_attention": {"rope_theta": 70.0}}, {}, None, LINEAR, {"full_attention": {**YARN, "truncate": False}}, {"full_attention": 3},
    {"rope_type": "default"},
)  # fmt: skip
MIXED = ["full_attention", "sliding_attention", "sliding_attention"]
LAYERS = (MIXED, ["full_attention"] * 3, None, MIXED[:2], ["full_attention"] * 2 + ["chunked_attention"], "full_attention", [3] * 3)
MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
# values of flipped entries, added to every config.json; other entries of the library are flipped by type
FLIPPED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu", "quick_gelu", "gelu_10", "mish", 3),
    "n_embd": (15,), "n_head": (4, 5, "3"), "n_inner": (None, 11), "n_layer": (1, 3), "n_ctx": (4,),
    "layer_norm_epsilon": (1e-2,), "hidden_dropout_prob": (0.5, 1.5), "attn_pdrop": (0.9, 1.1),
    "attention_probs_dropout_prob": (1.1,), "classifier_dropout": (0.3,), "embedding_size": (7,),
    "position_embedding_type": ("relative_key",), "max_length": (7,), "task_specific_params": ({"a": 1},),
    "pruned_heads": ({"0": [1]}, {}), "use_bias": (True, False), "use_bfloat16": (True,),
    "summary_type": ("mean",), "chunk_size_feed_forward": (7,),
    "summary_activation": ("tanh",), "is_encoder_decoder": (True,), "cross_attention_hidden_size": (True,),
    "hidden_activation": ("relu", "silu", None), "hidden_size": (23, "24"), "vocab_size": (32,),
    "num_attention_heads": (6, 0, "4", 2.0),
    "num_key_value_heads": (4, 3, None), "head_dim": (7, None, 8), "num_hidden_layers": (2, 0, "3"), "intermediate_size": (11,),
    "rms_norm_eps": (1e-2, 0, "1e-5"), "attention_dropout": (0.5, 1.5), "attention_bias": (True, None), "mlp_bias": (True,),
    "tie_word_embeddings": (True, False), "sliding_window": (3, 1, None, 0, "3", 2.0), "use_sliding_window": (True, False),
    "max_window_layers": (1, 0, "1"), "layer_types": LAYERS, "sliding_window_pattern": (2, 1, 0, "2"),
    "no_rope_layers": ([1, 0, 1], [0, 0, 0], [1, 0, 1, 1], [1], None, "x", [2, 1, 1]), "no_rope_layer_interval": (2, 1, 0),
    "rope_scaling": ROPES, "rope_theta": (70.0, None, "70"), "partial_rotary_factor": (0.5, 1.0), "rope_local_base_freq": (70.0, None),
    "max_position_embeddings": (64, "5"), "original_max_position_embeddings": (16,), "query_pre_attn_scalar": (7, 7.0, 0, None),
    "attn_logit_softcapping": (0.7, None, 0.0), "final_logit_softcapping": (0.7, None, -1.0), "resid_pdrop": (0.5,), "embd_pdrop": (0.5,),
    "use_bidirectional_attention": (True, None, False), "pretraining_tp": (2,), "unsloth_version": ("2025.1",),
    "unsloth_fixed": (True,), "cache_implementation": ("hybrid",),
    "use_mrope": (True, False), "model_type": ("xlnet", 3),
    "architectures": (["LlamaForCausalLM", "LlamaModel"], ["RobertaForMaskedLM"], "BertForMaskedLM"),
    "dtype": ("float32",), "torch_dtype": ("float16",), "transformers_version": ("4.0.0",), "initializer_range": (0.5,),
    "problem_type": ("regression",), "pad_token_id": (3,), "bos_token_id": (5,), "eos_token_id": (None, [6, 7]), "temperature": (0.5,),
    "id2label": ({"0": "a", "1": "b", "2": "c"},), "per_layer_config": ({"0": {"hidden_size": 6}},), "num_heads": (3,), "clip_qkv": (0.1,),
    "quantization_config": ({"bits": 8},), "auto_map": ({"AutoModel": "m.M"},), "qkv_bias": (True, False), "hidden_dropout": (0.5,),
    "norm_epsilon": (1e-2, 0), "layer_norm_eps": (1e-2, 0, "1e-5"), "use_qkv_bias": (True,),
    "attention_out_bias": (True,), "use_parallel_residual": (True,), "qk_layernorm": (True,), "residual_dropout": (0.5,),
    "window_size": (2, 0, None), "do_layer_norm_before": (None,), "_remove_final_layer_norm": (None,), "enable_bias": (False,),
    "word_embed_proj_dim": (7, None, 24), "layer_norm_elementwise_affine": (False,), "layerdrop": (0.5,), "dropout": (0.5,),
    "attention_types": ([[["global"], 3]], [[["local"], 1], [["global", "local"], 1]], [[["global"], 2]], [[["x"], 3]], 3, None),
    "attention_layers": (["global"] * 3,), "activation_function": ("relu", "gelu", "mish"), "ffn_dim": (11,), "num_layers": (2,),
    "num_local_experts": (5, 7, 0, "6"), "num_experts": (5, 7, 0), "n_routed_experts": (5, 0), "num_experts_per_tok": (1, 6, 7, 0, "2"),
    "moe_intermediate_size": (8,), "norm_topk_prob": (True, False, None),
    "shared_expert_intermediate_size": (6, 0), "shared_intermediate_size": (6, 0), "decoder_sparse_step": (1, 2, 3, 0, "1"),
    "mlp_only_layers": ([0], [1], [0, 2], [9], [], None, 1), "first_k_dense_replace": (0, 2, 3, 4, -1, "1"),
    "n_shared_experts": (0, 2, "1"), "n_group": (1, 2, 3, 4, 0), "topk_group": (1, 2, 3, 0), "routed_scaling_factor": (2.5, 0.0, None),
    "use_qk_norm": (True, None), "num_nextn_predict_layers": (0, 2), "swiglu_limit": (0.3, 5.0, 0.0, None, "7"),
    "swiglu_alpha": (1.0, 2), "router_jitter_noise": (0.3,), "router_aux_loss_coef": (0.3,), "output_router_logits": (True,),
    **dict.fromkeys(MULTIPLIERS, (0.3, 2, 0.0, -1.0, None, "2")),
    "logit_scale": (0.3, None, "2"), "rotary_dim": (2, 6, 8, None, "4"), "rotary_emb_base": (70.0,), "rotary_pct": (0.5,),
    "_sliding_window_pattern": (2,), "tie_last_hidden_states": (False,), "gradient_checkpointing": (True,),
}  # fmt: skip
# entries that the library computes with, although they change the class of that family or are unknown to it
REFUSED: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (0.5,), "use_bidirectional_attention": (True,), "resid_pdrop": (0.5,), "activation_function": ("mish",),
    "use_mrope": (True,), "model_type": ("xlnet", 3), "architectures": FLIPPED["architectures"], "auto_map": FLIPPED["auto_map"],
    "quantization_config": FLIPPED["quantization_config"], "is_encoder_decoder": (True,), "tie_last_hidden_states": (False,),
    "rms_norm_eps": (0,), "attention_dropout": (1.5,), "tie_word_embeddings": (True,), "num_key_value_heads": (3,),
    "hidden_act": ("gelu_10", "mish"), "rope_parameters": BAD, "rope_scaling": BAD, "final_logit_softcapping": (-1.0,),
    "attn_logit_softcapping": (0.0,), "no_rope_layers": ([2, 1, 1],), "num_experts_per_tok": (0,), "topk_group": (0,),
    "swiglu_alpha": (1.0, 2), "swiglu_limit": (0.0,), "routed_scaling_factor": (0.0,), **dict.fromkeys(MULTIPLIERS, (0.0, -1.0)),
}  # fmt: skip
BY_LAYER = {
    "rope_parameters": ({"rope_type": "default"}, LINEAR, {"full_attention": {**YARN, "truncate": False}}),
    "rope_scaling": (*BAD, {"type": "linear", "factor": 3.0}),
}
# the library does not read it for Phi-3, and for Gemma 3 only in today's form
REFUSED_OF: dict[str, dict[str, Any]] = {
    "bert": {"hidden_act": ("silu", "swish", "gelu_10", "mish"), "is_decoder": (True,)},
    "gpt2": {"embd_pdrop": (0.5,), "scale_attn_by_inverse_layer_idx": (True,),
             "scale_attn_weights": (False,)},
    **{family: {"hidden_dropout": (0.5,)} for family in ("stablelm", "persimmon")},
    "phi": {"embd_pdrop": (0.5,)},
    **{family: {"embd_pdrop": (0.5,)} for family in ("gptj", "codegen")},
    "opt": {name: FLIPPED[name] for name in ("word_embed_proj_dim", "layer_norm_elementwise_affine", "layerdrop")},
    "falcon": {"alibi": (True,)},
    "biogpt": {"layerdrop": (0.5,), "activation_dropout": (1.0,), "attention_probs_dropout_prob": (1.1,)},
    "starcoder2": {"residual_dropout": (0.5,), "embedding_dropout": (1.0,)},
    "gpt_neo": {"resid_dropout": (1.0,), "embed_dropout": (1.0,), "num_attention_heads": (6,)},
    "olmo3": BY_LAYER, "gemma3_text": BY_LAYER,
    "phi3": {"attention_bias": (True,)},
}  # fmt: skip


SOME = [*every(3, [(family, 10) for family in KINDS]), *(conformance((family, 1)) for family in KINDS)]


def said_by(family: str) -> dict[str, Any]:
    config = getattr(transformers, model_of(family).kind).config_class(**model_of(family).settings)
    return config.to_dict()


def model_of(family: str) -> Drawn:
    if family in MODELS:
        return MODELS[family]
    names = entries_by_field(family)
    sizes = {names[field]: size for field, size in SIZES.items() if field in names}
    return Drawn(KINDS[family] + "ForCausalLM", sizes | IDS | OTHERS.get(family, {}))


def flips(family: str) -> Iterator[tuple[str, Any]]:
    """Yields every entry that any version of the library or another program writes, with other values."""
    said = said_by(family)
    for name in dict.fromkeys([*said, *FLIPPED]):
        if name in HARMLESS and family not in ("llama", *MODELS):  # these are the same in all families
            continue
        value: Any = said.get(name)
        other: Any = not value if isinstance(value, bool) else value + 1 if isinstance(value, (int, float)) else True
        values = FLIPPED.get(name, (other,))
        if name == "rope_parameters":
            values = NESTED if "sliding_attention" in value else ROPES
        yield from ((name, flipped) for flipped in values if flipped != value or type(flipped) is not type(value))


def computed(folder: Path, kind: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the library's float64 results; None if it fails or creates tensors."""
    try:
        with all_in_float64():
            model, said = class_of(kind).from_pretrained(
                folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
            )  # fmt: skip
            found = theirs(model.eval(), given)
    except Exception:  # any error: the library checks some entries and fails on others
        return None
    return found if not any(said.values()) and np.isfinite(found["output"][given["mask"]]).all() else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "step"), [("bert", 1), ("gpt2", 1), *SOME])
def test_an_entry_is_honoured_or_refused_by_its_name(tmp_path: Path, family: str, step: int) -> None:
    """step: tests one flip in this many, different ones for every family."""
    model, given, wrong, read = model_of(family), tokens(31, "left", 2 * (family == "bert")), [], 0
    refused = REFUSED | REFUSED_OF.get(family, {})
    made(model).save_pretrained(tmp_path)
    before = (tmp_path / "config.json").read_text()
    rotary = {"rope_theta", "rope_scaling", "max_position_embeddings", "partial_rotary_factor"}
    said = {*json.loads(before), *(rotary if "rotary_base" in entries_by_field(family) else ())}
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    for name, value in [*flips(family)][[*MODELS, *KINDS].index(family) % step :: step]:
        edit(tmp_path, **{name: value})
        label, refusal, numbers = f"{name}={json.dumps(value)}", "", None
        try:
            numbers = ours(checkpoints.view(tmp_path, "hugging-face"), model.kind, given)
        except ValueError as error:
            refusal = str(error)
        allowed = value in refused.get(name, ()) or (name not in said and f"{name}" in refusal)
        wanted = computed(tmp_path, model.kind, given) if numbers or not allowed else None
        if refusal and (name not in refusal or wanted is not None):
            wrong.append(f"{label}: refused: {refusal}")
        elif numbers and wanted:
            read += 1
            try:
                assert_close(numbers, wanted, given["mask"])
            except AssertionError as error:
                wrong.append(f"{label}: {error!s:.300}")
        (tmp_path / "config.json").write_text(before)
    assert not wrong, "\n".join(wrong)
    assert read > (5 if step == 1 else 0)
