"""Entries as published folders of the families have them, among them those of earlier versions of the library and of other programs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hugging_face_folders import Drawn, assert_close, loaded, made, ours, theirs, tokens_of
from invoke import invoke
from kinds import conformance
from model_folders import edit, likely_pieces

from rosettaformer import checkpoints
from rosettaformer.checkpoints import CheckpointError, container
from rosettaformer.checkpoints.hugging_face import FAMILIES
from rosettaformer.checkpoints.hugging_face.entries import config_of
from rosettaformer.conformance.cases.like_folders import cases_of

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
# model_type, entries, and fields of the config
PUBLISHED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("starcoder2", {
        "activation_function": "gelu", "attention_dropout": 0.1, "attention_softmax_in_fp32": True, "embedding_dropout": 0.1,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "intermediate_size": 12288, "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 16384, "mlp_type": "default", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
        "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2, "residual_dropout": 0.1,
        "rope_theta": 999999.4420358813, "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "sliding_window": 4096,
        "use_bias": True, "vocab_size": 49152,
    }, {"rotary_base": 999999.4420358813, "window": 4096, "tie_logits": True, "dropout_rate": 0.1, "key_size": 128}),
    ("stablelm", {
        "attention_dropout": 0.0, "hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 2048, "intermediate_size": 5632,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 24,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "qk_layernorm": False, "rope_scaling": None, "rope_theta": 10000,
        "tie_word_embeddings": False, "use_parallel_residual": False, "use_qkv_bias": True, "vocab_size": 100352,
    }, {"rotary_fraction": 0.25, "query_key_value_bias": True, "attention_output_bias": False, "norm": "layer"}),
    ("glm", {
        "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 131072, "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151329, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 151552,
    }, {"rotary_layout": "interleaved", "rotary_fraction": 0.5, "query_key_value_bias": True, "attention_output_bias": False}),
    ("glm4", {
        "attention_bias": False, "head_dim": 128, "hidden_size": 6144, "intermediate_size": 23040, "num_attention_heads": 48,
        "num_hidden_layers": 61, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "vocab_size": 151552,
    }, {"norm_placement": "sandwich", "query_key_value_bias": False}),
    ("olmo3", {
        "attention_bias": False, "hidden_size": 4096, "intermediate_size": 11008, "layer_types": LAYERS * 8, "num_hidden_layers": 32,
        "max_position_embeddings": 65536, "num_attention_heads": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06,
        "rope_scaling": YARN, "rope_theta": 500000, "sliding_window": 4096, "vocab_size": 100278,
    }, {"window": 4096, "layer_pattern": ("local", "local", "local", "global"), "local_rotary_base": 500000.0}),
    ("ministral", {
        "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288, "layer_types": ["full_attention", *LAYERS[:3]] * 9,
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rope_theta": 100000000.0, "sliding_window": 32768,
        "vocab_size": 131072,
    }, {"window": 32768, "layer_pattern": ("global", "local", "local", "local"), "rotary_base": 1e8}),
    ("seed_oss", {
        "attention_bias": True, "attention_dropout": 0.1, "attention_out_bias": False, "head_dim": 128, "hidden_size": 5120,
        "intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": False, "num_attention_heads": 80,
        "num_hidden_layers": 64, "num_key_value_heads": 8, "pretraining_tp": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-06,
        "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "vocab_size": 155136,
    }, {"key_size": 128, "rotary_base": 1e7, "attention_output_bias": False}),
    ("exaone4", {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27392,
        "layer_types": LAYERS * 16, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG", "vocab_size": 102400,
    }, {"rotary_pattern": (True, True, True, False), "window": 4096, "norm_placement": "after", "query_key_norm": "head"}),
    ("exaone4", {
        "head_dim": 64, "hidden_size": 2048, "intermediate_size": 4096, "layer_types": ["full_attention"] * 30, "num_hidden_layers": 30,
        "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": None, "sliding_window_pattern": None, "vocab_size": 102400,
        "tie_word_embeddings": True,
    }, {"rotary_pattern": (True,), "window": 0}),
    ("ernie4_5", {
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 131072,
        "num_attention_heads": 16, "num_hidden_layers": 18, "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": True, "use_bias": False, "vocab_size": 103424,
    }, {"rotary_layout": "interleaved", "rotary_base": 5e5, "tie_logits": True}),
    ("helium", {
        "attention_bias": False, "head_dim": 128, "hidden_size": 2560, "intermediate_size": 7040, "mlp_bias": False,
        "num_attention_heads": 20, "num_hidden_layers": 24, "num_key_value_heads": 20, "rms_norm_eps": 1e-08, "rope_theta": 100000.0,
        "vocab_size": 48000,
    }, {"rotary_layout": "interleaved", "norm_cast_before_scale": False}),
    ("gpt_neo", {
        "activation_function": "gelu_new", "attention_dropout": 0, "attention_layers": ["global", "local"] * 6,
        "attention_types": [[["global", "local"], 6]], "embed_dropout": 0, "gradient_checkpointing": False, "hidden_size": 768,
        "intermediate_size": None, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 2048, "num_heads": 12, "num_layers": 12,
        "resid_dropout": 0, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257, "window_size": 256,
    }, {"layer_pattern": ("global", "local"), "window": 256, "score_scale": 1.0, "feed_forward_width": 3072}),
    ("opt", {
        "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu", "attention_dropout": 0.0,
        "do_layer_norm_before": True, "dropout": 0.1, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
        "max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "prefix": "</s>",
        "vocab_size": 50272, "word_embed_proj_dim": 768,
    }, {"position_offset": 2, "norm_placement": "pre", "final_norm": True, "activation": "relu", "max_positions": 2048}),
    ("roberta", {
        "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 50265,
    }, {"position_offset": 2, "max_positions": 512, "segments": 1, "position_start": "first_token"}),
    ("xlm-roberta", {
        "hidden_size": 768, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "output_past": True, "pad_token_id": 1,
        "position_embedding_type": "absolute", "type_vocab_size": 1, "vocab_size": 250002,
    }, {"position_offset": 2, "max_positions": 512}),
    ("camembert", {
        "bos_token_id": 5, "eos_token_id": 6, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "pad_token_id": 1,
        "type_vocab_size": 1, "vocab_size": 32005,
    }, {"position_offset": 2}),
    ("distilbert", {
        "activation": "gelu", "attention_dropout": 0.1, "dim": 768, "dropout": 0.1, "hidden_dim": 3072, "max_position_embeddings": 512,
        "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False,
        "tie_weights_": True, "vocab_size": 30522,
    }, {"position_start": "row", "segments": 0, "epsilon": 1e-12}),
]  # fmt: skip
# what of a family is refused, and the entry that is named
REFUSED = [
    ("stablelm", {"use_parallel_residual": True}), ("stablelm", {"qk_layernorm": True}), ("opt", {"word_embed_proj_dim": 512}),
    ("roberta", {"pad_token_id": None}), ("roberta", {"max_position_embeddings": 2}), ("roberta", {"hidden_act": "relu"}),
    ("exaone4", {"sliding_window": None}), ("gpt_neo", {"attention_types": [[["global"], 10**12]]}), ("opt", {"layerdrop": 0.1}),
]  # fmt: skip


def read(model_type: str, entries: dict[str, Any]) -> tuple[Any, list[str]]:
    """The config of these entries and the problems, with the heads of the family's first class."""
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
    """The library finds the first real token of a RoBERTa by the padding id, so every prompt has that id there and nowhere else."""
    cases = [case for case in cases_of("roberta", tmp_path, ["float32"]) if case.inputs.get("source") is not None]
    assert len(cases) > 5
    for case in cases:
        ids, mask = case.inputs["source"], case.inputs.get("source_mask_bs")
        np.testing.assert_array_equal(ids == 1, np.zeros(ids.shape, bool) if mask is None else ~mask)


SIZES = {"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10}


@pytest.mark.conformance
def test_a_pooler_beside_the_head_of_a_roberta_is_not_read(tmp_path: Path) -> None:
    """As folders of earlier versions have it; the numbers are those of the library, which does not read it."""
    pytest.importorskip("transformers")
    settings = SIZES | {"max_position_embeddings": 30, "num_labels": 3, "pad_token_id": 1}
    made(Drawn("RobertaForSequenceClassification", settings)).save_pretrained(tmp_path)
    library = loaded(tmp_path, "RobertaForSequenceClassification")
    first = checkpoints.load(tmp_path)
    tensors = {name: np.array(array) for name, array in container.read(tmp_path).tensors.items()}
    (tmp_path / "model.safetensors").unlink()
    rng, more = np.random.default_rng(0), {"weight": (12, 12), "bias": (12,)}
    tensors |= {f"roberta.pooler.dense.{name}": rng.standard_normal(shape) for name, shape in more.items()}
    container.write(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    found = checkpoints.load(tmp_path)
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
