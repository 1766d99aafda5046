"""Every entry of config.json: honoured as the library honours it, or refused by its name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hugging_face_folders import Drawn, assert_close, loaded, ours, saved, theirs, tokens
from model_folders import edit

from rosettaformer import checkpoints

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("torch")

SIZES: dict[str, dict[str, Any]] = {
    "bert": {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10,
             "max_position_embeddings": 9},
    "gpt2": {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 9, "n_inner": 10, "bos_token_id": 1,
             "eos_token_id": 2},
}  # fmt: skip
KINDS = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}
CONFIGS = {family: getattr(transformers, name)(**SIZES[family]) for family, name in (("bert", "BertConfig"), ("gpt2", "GPT2Config"))}
# what an entry is flipped to; others by their type
FLIPPED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("relu", "gelu_new", "quick_gelu", "silu", "gelu_10", 3), "activation_function": ("gelu", "relu", "mish"),
    "hidden_size": (15,), "n_embd": (15,), "num_attention_heads": (4, 5, 0, 2.0), "n_head": (4, 5, "3"), "n_inner": (None, 11),
    "num_hidden_layers": (1, 3, 0), "n_layer": (1, 3), "layer_norm_eps": (1e-2, 0, "1e-5"), "layer_norm_epsilon": (1e-2,),
    "hidden_dropout_prob": (0.5, 1.5), "classifier_dropout": (0.3,), "resid_pdrop": (0.5,), "embd_pdrop": (0.0,), "attn_pdrop": (0.9,),
    "architectures": (["BertForMaskedLM", "BertModel"], ["RobertaForMaskedLM"], "BertForMaskedLM"), "model_type": ("xlnet", 3, ...),
    "position_embedding_type": ("relative_key",), "pad_token_id": (3, None), "id2label": ({"0": "a", "1": "b", "2": "c"},),
    "dtype": ("float32",), "torch_dtype": ("float16",), "transformers_version": ("4.0.0",), "initializer_range": (0.5,),
    "problem_type": ("regression",), "summary_type": ("mean",), "summary_activation": ("tanh",), "chunk_size_feed_forward": (7,),
    "bos_token_id": (5,), "eos_token_id": (None, 6), "max_length": (7,), "temperature": (0.5,), "task_specific_params": ({"a": 1},),
    "pruned_heads": ({"0": [1]}, {}), "per_layer_config": ({"0": {"n_head": 6}},), "embedding_size": (7,), "n_ctx": (4,),
    "quantization_config": ({"bits": 8},), "auto_map": ({"AutoModel": "m.M"},), "num_heads": (3,), "hidden_dropout": (0.5,),
    "gradient_checkpointing": (True,), "use_bfloat16": (True,), "tie_last_hidden_states": (False,), "vocab_size": (32, "31"),
}  # fmt: skip
# entries beside those that the library writes: of every config, of earlier versions, and unknown ones
OTHERS = ("position_embedding_type", "pruned_heads", "torch_dtype", "id2label", "problem_type", "chunk_size_feed_forward", "max_length",
          "temperature", "task_specific_params", "per_layer_config", "embedding_size", "quantization_config", "auto_map", "num_heads",
          "gradient_checkpointing", "use_bfloat16", "tie_last_hidden_states", "is_encoder_decoder", "output_attentions",
          "output_hidden_states", "return_dict", "hidden_dropout", "n_ctx", "cross_attention_hidden_size")  # fmt: skip
# entries that the library takes for another architecture or another number of classes, or that it does not read at all
REFUSED = {
    "bert": {"add_cross_attention", "is_decoder", "is_encoder_decoder", "hidden_size", "intermediate_size", "max_position_embeddings",
             "num_hidden_layers", "type_vocab_size", "vocab_size", "tie_word_embeddings", "architectures", "model_type"},
    "gpt2": {"add_cross_attention", "is_encoder_decoder", "n_embd", "n_layer", "n_positions", "n_inner", "vocab_size",
             "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "tie_word_embeddings", "embd_pdrop", "resid_pdrop", "architectures",
             "model_type"},
}  # fmt: skip
ALWAYS = {"position_embedding_type", "per_layer_config", "embedding_size", "quantization_config", "auto_map", "num_heads",
          "tie_last_hidden_states", "hidden_dropout", "cross_attention_hidden_size"}  # fmt: skip


def flips() -> list[tuple[str, str, Any]]:
    """Every entry that the library writes or ever wrote, with other values: none of them may be taken for unknown."""
    found = []
    for family, config in CONFIGS.items():
        said = config.to_dict() | {"architectures": None, "dtype": "float64"}
        for name in dict.fromkeys([*said, *OTHERS]):
            value = said.get(name)
            other: Any = not value if isinstance(value, bool) else value + 1 if isinstance(value, (int, float)) else True
            found += [(family, name, flipped) for flipped in FLIPPED.get(name, (other,))]
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: saved(Drawn(KINDS[family], sizes), root / family) for family, sizes in SIZES.items()}


@pytest.mark.parametrize(("family", "name", "value"), flips(), ids=lambda value: json.dumps(value) if value is not ... else "absent")
def test_an_entry_is_honoured_or_refused_by_its_name(tmp_path: Path, folders: dict[str, Path], family: str, name: str, value: Any) -> None:
    shutil.copytree(folders[family], tmp_path, dirs_exist_ok=True)
    edit(tmp_path, **{name: value})
    try:
        checkpoint = checkpoints.load(tmp_path, "hugging-face")
    except ValueError as error:
        assert name in str(error), error
        assert name in REFUSED[family] | ALWAYS or (name, value) in [
            ("hidden_act", "silu"), ("hidden_act", "gelu_10"), ("hidden_act", 3), ("activation_function", "mish"),
            ("num_attention_heads", 5), ("num_attention_heads", 0), ("num_attention_heads", 2.0), ("n_head", 5), ("n_head", "3"),
            ("layer_norm_eps", 0), ("layer_norm_eps", "1e-5"), ("hidden_dropout_prob", 1.5), ("pruned_heads", {"0": [1]}),
            ("n_ctx", 4), ("attention_probs_dropout_prob", 1.1), ("attn_pdrop", 1.1), ("reorder_and_upcast_attn", True),
        ]  # fmt: skip
        return
    given = tokens(31, "right", checkpoint.config.segments)
    upcast = name == "reorder_and_upcast_attn"  # which the library does in float32
    library = loaded(tmp_path, KINDS[family])
    if upcast:
        library.set_attn_implementation("eager")
        library = library.float()
    assert_close(ours(checkpoint, KINDS[family], given), theirs(library, given), given["mask"], 1e-5 if upcast else 1e-10)
