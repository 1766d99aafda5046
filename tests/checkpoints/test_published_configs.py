"""Entries in published folders of the families, including those of earlier library versions and other programs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hugging_face_folders import Drawn, assert_close, loaded, made, ours, theirs, tokens_of
from invoke import invoke
from kinds import conformance
from model_folders import edit, likely_pieces
from test_hugging_face_folders import altered

from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import CheckpointError
from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.files.checkpoints.hugging_face.entries import config_of
from rosettaformer.judge.suite.like_folders import cases_of

EVERY = {"torch_dtype": "bfloat16", "use_cache": True, "transformers_version": "4.51.0", "initializer_range": 0.02}
TUNED = {
    "unsloth_version": "2025.3.19", "unsloth_fixed": True, "_attn_implementation_autoset": True, "quantization_config": None,
    "pretraining_tp": 1, "_name_or_path": "a/b", "use_flash_attn": True,
}  # fmt: skip
YARN = {
    "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 8192,
    "rope_type": "yarn",
}  # fmt: skip
LAYERS = [*["sliding_attention"] * 3, "full_attention"]
# model_type, entries that the library no longer writes with their companions, fields of the config
_FAIRSEQ = {
    "activation_dropout": 0.1, "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.0, "classifier_dropout": 0.0,
    "decoder_layerdrop": 0.0, "encoder_layerdrop": 0.0, "init_std": 0.02, "is_encoder_decoder": True, "normalize_before": False,
    "normalize_embedding": False,
}  # fmt: skip
PUBLISHED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("starcoder2", {
        "activation_function": "gelu", "attention_softmax_in_fp32": True, "layer_norm_epsilon": 1e-05,
        "mlp_type": "default", "norm_type": "layer_norm", "rope_theta": 999999.4420358813,
        "sliding_window": 4096, "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True,
    }, {"rotary_base": 999999.4420358813, "window": 4096, "tie_logits": True}),
    ("stablelm", {"partial_rotary_factor": 0.25, "rope_scaling": None, "rope_theta": 9000}, {
        "rotary_fraction": 0.25, "rotary_base": 9000,
    }),
    ("glm", {"partial_rotary_factor": 0.5, "rope_theta": 9000.0}, {"rotary_base": 9000}),
    ("olmo3", {"layer_types": LAYERS * 8, "num_hidden_layers": 32, "rope_scaling": YARN}, {
        "layer_pattern": ("local", "local", "local", "global"), "local_rotary_base": 500000.0,
    }),
    ("seed_oss", {"rope_scaling": {"rope_type": "default"}, "rope_theta": 2000000.0}, {"rotary_base": 2e6}),
    ("exaone4", {
        "head_dim": 128, "layer_types": LAYERS * 16, "num_hidden_layers": 64, "rope_theta": 1000000,
        "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "sliding_window_pattern": "LLLG",
    }, {"rotary_pattern": (True, True, True, False), "rotary_base": 1e6, "key_size": 128}),
    ("gpt_neo", {
        "attention_layers": ["global", "local"] * 6, "attention_types": [[["global", "local"], 6]],
        "num_layers": 12, "gradient_checkpointing": False, "summary_activation": None,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True,
    }, {"layer_pattern": ("global", "local"), "window": 256}),
    ("gpt_neox", {"rotary_emb_base": 9000, "rotary_pct": 0.5, "classifier_dropout": 0.1}, {
        "rotary_base": 9000, "rotary_fraction": 0.5, "norm_placement": "parallel",
    }),
    ("gpt_neox", {"use_parallel_residual": False, "rope_theta": 9000}, {"norm_placement": "pre", "rotary_base": 9000}),
    ("phi", {"hidden_size": 2560, "partial_rotary_factor": 0.4, "rope_theta": 9000.0, "qk_layernorm": False}, {
        "rotary_base": 9000, "rotary_fraction": 0.4,
    }),
    ("phi", {"qk_layernorm": True}, {"query_key_norm": "head"}),
    ("cohere", {"use_qk_norm": False, "logit_scale": 0.0625, "rope_theta": 8000000.0}, {"logit_scale": 0.0625, "rotary_base": 8e6}),
    ("cohere", {"use_qk_norm": True, "hidden_size": 12288, "num_attention_heads": 96}, {"query_key_norm": "each_head"}),
    ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True, "hidden_size": 5120, "num_key_value_heads": 8}, {
        "query_key_norm": "each_head", "norm_placement": "parallel_shared", "query_key_norm_offset": False,
    }),
    ("cohere2", {"sliding_window_pattern": 4, "num_hidden_layers": 8, "rope_theta": 50000}, {
        "rotary_pattern": (True, True, True, False), "window": 4096,
    }),
    ("gptj", {"rotary": True, "rotary_dim": 64, "n_inner": None, "summary_type": "cls_index", "scale_attn_weights": True}, {
        "rotary_fraction": 0.25, "feed_forward_width": 16384,
    }),
    ("arcee", {"head_dim": 128, "hidden_act": "relu2", "num_key_value_heads": 4, "rope_theta": 10000.0}, {
        "activation": "relu_squared", "gated_feed_forward": False, "key_size": 128,
    }),
    ("nemotron", {"hidden_size": 3072, "num_attention_heads": 24, "partial_rotary_factor": 0.5, "rope_theta": 9000.0}, {
        "activation": "relu_squared", "norm_one_plus_scale": True, "norm_offset": True, "rotary_fraction": 0.5, "rotary_base": 9000.0,
    }),
    ("hunyuan_v1_dense", {"head_dim": 128, "eod_token_id": 120020, "pretraining_tp": 1, "rope_theta": 10000.0, "rope_scaling": {
        "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0, "type": "dynamic",
    }}, {"query_key_norm_after_rotation": True, "rotary_base": 10000.0 * 1000.0 ** (128 / 126)}),
    ("persimmon", {"qk_layernorm": True, "partial_rotary_factor": 0.5, "rope_theta": 25000.0, "hidden_act": "relu2"}, {
        "query_key_norm": "head", "rotary_fraction": 0.5, "rotary_base": 25000.0, "activation": "relu_squared", "norm_offset": True,
    }),
    ("olmo", {"clip_qkv": 8.0, "rope_theta": 10000.0, "tie_word_embeddings": True}, {
        "norm_scale": False, "norm": "layer", "epsilon": 1e-5, "query_key_value_clip": 8.0, "tie_logits": True,
    }),
    ("codegen", {"n_ctx": 2048, "n_head": 32, "rotary_dim": 32}, {"rotary_fraction": 0.25}),
    ("opt", {"activation_dropout": 0.0, "prefix": "</s>"}, {"position_offset": 2, "final_norm": True}),
    ("biogpt", {"layer_norm_eps": 1e-12, "layerdrop": 0.0, "scale_embedding": True}, {"epsilon": 1e-5, "scale_embedding": True}),
    ("falcon", {
        "alibi": False, "bias": False, "hidden_size": 8192, "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True,
        "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": True,
        "vocab_size": 65024,
    }, {"key_value_heads": 8, "norm_placement": "parallel", "feed_forward_width": 32768}),
    ("falcon", {"num_kv_heads": 71}, {"key_value_heads": 1, "norm_placement": "parallel_shared"}),
    ("electra", {"embedding_size": 768, "hidden_size": 768, "summary_last_dropout": 0.1}, {"model_width": 768, "embedding_norm": True}),
    ("xlm-roberta", {
        "max_position_embeddings": 514, "output_past": True, "pad_token_id": 1,
        "position_embedding_type": "absolute",
    }, {"position_offset": 2, "max_positions": 512}),
    ("mixtral", {
        "num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": False, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02, "sliding_window": None,
    }, {"experts": 8, "expert_width": 14336, "rotary_base": 1e6}),
    ("qwen2_moe", {
        "decoder_sparse_step": 1, "max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_experts": 60,
        "num_experts_per_tok": 4, "output_router_logits": False, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "use_sliding_window": False,
    }, {"shared_width": 5632, "expert_pattern": (True,) * 24, "router_normalize": False, "window": 0}),
    ("qwen3_moe", {
        "decoder_sparse_step": 1, "head_dim": 128, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "rope_scaling": None,
        "rope_theta": 1000000.0, "sliding_window": None, "use_sliding_window": False,
    }, {"experts": 128, "router_normalize": True, "query_key_norm": "head", "rotary_base": 1e6}),
    ("olmoe", {"clip_qkv": 8.0, "norm_topk_prob": False, "num_experts": 64, "rope_scaling": None, "rope_theta": 10000.0}, {
        "experts": 64, "experts_per_token": 8, "query_key_norm": "width", "query_key_value_clip": 8.0,
    }),
    ("granitemoe", {
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 6.0, "num_local_experts": 40,
        "num_experts_per_tok": 8, "residual_multiplier": 0.22, "rope_theta": 10000, "router_aux_loss_coef": 0.0,
    }, {"score_scale": 0.015625, "logit_scale": 1 / 6, "residual_multiplier": 0.22}),
    ("gpt_oss", {
        "experts_per_token": 4, "initial_context_length": 4096, "layer_types": ["sliding_attention", "full_attention"] * 12,
        "num_hidden_layers": 24, "num_local_experts": 32, "rope_theta": 150000, "swiglu_limit": 7.0,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
            "truncate": False,
        },
    }, {"layer_pattern": ("local", "global"), "window": 128, "gate_limit": 7.0, "rotary_base": 150000, "attention_sinks": "all"}),
    ("glm4_moe", {
        "attention_bias": True, "first_k_dense_replace": 3, "head_dim": 128, "n_group": 1, "n_routed_experts": 160,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_hidden_layers": 92, "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5, "rope_scaling": None, "rope_theta": 1000000, "routed_scaling_factor": 2.5, "topk_group": 1,
        "use_qk_norm": True,
    }, {"expert_pattern": (False,) * 3 + (True,) * 89, "shared_width": 1408, "query_key_norm": "head", "rotary_fraction": 0.5}),
    ("distilbert", {"sinusoidal_pos_embds": False, "tie_weights_": True}, {"position_start": "row"}),
    ("modernbert", {
        "classifier_pooling": "mean", "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "layer_norm_eps": 1e-05,
        "local_attention": 128, "local_rope_theta": 10000.0, "num_hidden_layers": 22, "position_embedding_type": "absolute",
    }, {"layer_pattern": ("global", "local", "local"), "window": 65, "local_rotary_base": 10000.0, "first_norm": False}),
    ("nomic_bert", {"rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}, "tie_word_embeddings": True}, {
        "gated_feed_forward": True, "rotary_base": 1000.0, "activation": "silu", "segments": 2,
    }),
    ("marian", _FAIRSEQ | {
        "activation_function": "swish", "bad_words_ids": [[58100]], "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048,
        "decoder_layers": 6, "decoder_vocab_size": 58101, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layers": 6,
        "extra_pos_embeddings": 58101, "num_hidden_layers": 6, "pad_token_id": 58100, "scale_embedding": True,
        "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
    }, {"activation": "silu", "sinusoid_layout": "halves", "position_offset": 0, "norm_placement": "post", "share_embeddings": True}),
    ("pegasus", _FAIRSEQ | {
        "activation_function": "relu", "add_final_layer_norm": True, "decoder_layers": 16, "encoder_layers": 16, "extra_pos_embeddings": 1,
        "force_bos_token_to_be_generated": False, "normalize_before": True, "num_hidden_layers": 16, "pad_token_id": 0,
        "scale_embedding": True, "static_position_embeddings": True, "vocab_size": 96103,
    }, {"positions": "sinusoidal", "final_norm": True, "embedding_norm": False, "output_bias": True}),
    ("bart", _FAIRSEQ | {
        "force_bos_token_to_be_generated": True, "forced_bos_token_id": 0, "num_hidden_layers": 12, "pad_token_id": 1, "prefix": " ",
        "scale_embedding": False, "vocab_size": 50264,
    }, {"position_offset": 2, "max_positions": 1024, "embedding_norm": True, "final_norm": False, "scale_embedding": False}),
    ("mbart", _FAIRSEQ | {
        "add_final_layer_norm": True, "normalize_before": True, "normalize_embedding": True, "num_hidden_layers": 12, "pad_token_id": 1,
        "scale_embedding": True, "static_position_embeddings": False, "vocab_size": 250054,
    }, {"norm_placement": "pre", "final_norm": True, "embedding_norm": True, "position_start": "row"}),
    ("m2m_100", {
        "activation_function": "relu", "decoder_layerdrop": 0.05, "encoder_layerdrop": 0.05, "is_encoder_decoder": True,
        "num_hidden_layers": 12, "pad_token_id": 1, "scale_embedding": True, "vocab_size": 256206,
    }, {"sinusoid_layout": "tensor2tensor", "position_offset": 2, "position_start": "first_token", "output_bias": False}),
]  # fmt: skip
# the rejected change of a family, and the entry that is named
REFUSED = [
    ("roberta", {"pad_token_id": None}), ("roberta", {"max_position_embeddings": 2}), ("roberta", {"hidden_act": "relu"}),
    ("gpt_neo", {"attention_types": [[["global"], 10**12]]}),
    ("cohere", {"use_qk_norm": "yes"}), ("phi", {"qk_layernorm": True, "head_dim": 40}), ("gptj", {"rotary_dim": None}),
    ("codegen", {"n_head": 2}), ("falcon", {"alibi": True}), ("electra", {}),
    ("falcon", {"new_decoder_architecture": True, "parallel_attn": False}), ("falcon", {"num_ln_in_parallel_attn": 2}),
    ("gpt_neox", {"use_parallel_residual": "yes"}), ("modernbert", {"local_attention": -1}),
    ("modernbert", {"global_attn_every_n_layers": 0}), ("modernbert", {"hidden_activation": "relu"}),
]  # fmt: skip


def read(model_type: str, entries: dict[str, Any]) -> tuple[Any, list[str]]:
    """Returns the config of these entries and the problems, with the heads of the family's first class."""
    family = FAMILIES[model_type]
    return config_of(family, {"model_type": model_type, **entries}, next(iter(family.classes.values())))


@pytest.mark.parametrize(("model_type", "entries", "fields"), PUBLISHED, ids=[one[0] for one in PUBLISHED])
def test_published_entries_are_read(model_type: str, entries: dict[str, Any], fields: dict[str, Any]) -> None:
    for more in (EVERY, EVERY | TUNED):
        config, problems = read(model_type, entries | more)
        assert not problems
        assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(("model_type", "entries"), REFUSED)
def test_what_is_not_supported_is_named_by_its_entry(model_type: str, entries: dict[str, Any]) -> None:
    config, problems = read(model_type, entries)
    assert config is None and all(any(name in problem for problem in problems) for name in entries)


def test_the_padding_id_marks_the_padding_of_a_model_that_counts_by_it(tmp_path: Path) -> None:
    """The library finds the first real token of a RoBERTa by the padding id, so every prompt has that id exactly there."""
    cases = [case for case in cases_of("roberta", tmp_path, ["float32"]) if case.inputs.get("source") is not None]
    assert len(cases) > 5
    for case in cases:
        ids, mask = case.inputs["source"], case.inputs.get("source_mask_bs")
        np.testing.assert_array_equal(ids == 1, np.zeros(ids.shape, bool) if mask is None else ~mask)


SIZES = {"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10}


@pytest.mark.conformance
def test_a_pooler_beside_the_head_of_a_roberta_is_not_read(tmp_path: Path) -> None:
    """Folders of earlier versions have it; results equal the library's, which ignores it."""
    pytest.importorskip("transformers")
    settings = SIZES | {"max_position_embeddings": 30, "num_labels": 3, "pad_token_id": 1}
    made(Drawn("RobertaForSequenceClassification", settings)).save_pretrained(tmp_path)
    library = loaded(tmp_path, "RobertaForSequenceClassification")
    first = checkpoints.load(tmp_path)
    rng, more = np.random.default_rng(0), {"weight": (12, 12), "bias": (12,)}
    pooler = {f"roberta.pooler.dense.{name}": rng.standard_normal(shape) for name, shape in more.items()}
    found = checkpoints.load(altered(tmp_path, lambda tensors: tensors.update(pooler)))
    assert all(np.array_equal(array, found.parameters[name]) for name, array in first.parameters.items())
    given = tokens_of(found.config, "right")
    got = ours(found, "RobertaForSequenceClassification", given)
    assert_close(got, theirs(library, given), given["mask"])
    edit(tmp_path, architectures=None)  # the tensors show the heads
    assert checkpoints.load(tmp_path).config == found.config
    with pytest.raises(CheckpointError, match=r"classifier\.dense"):
        checkpoints.load(tmp_path, ignore=["classifier.dense.weight", "roberta.pooler.dense.weight"])


@pytest.mark.parametrize(
    ("command", "kind"),
    [("embed", "RobertaModel"), *map(conformance, [("classify", "RobertaForSequenceClassification"), ("embed", "DistilBertModel")])],
)
def test_the_commands_run_on_an_encoder(tmp_path: Path, command: str, kind: str) -> None:
    pytest.importorskip("transformers")
    size = likely_pieces(tmp_path)
    sizes = SIZES if "Roberta" in kind else {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 10}
    settings = sizes | {"vocab_size": size, "max_position_embeddings": 30, "pad_token_id": 1}
    made(Drawn(kind, settings)).save_pretrained(tmp_path)
    edit(tmp_path, tokenizer_class="XLMRobertaTokenizer")
    found = invoke(command, tmp_path, "--backend", "numpy", stdin="the quick fox\nlazy dog\n")
    assert found.code == 0 and found.out.count("\n") == 2, found
