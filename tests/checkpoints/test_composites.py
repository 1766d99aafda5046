"""Text-and-image models of transformers: the text model is read behind every prefix; the rest is left out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_folders import all_in_float64
from decoder_folders import loaded as loaded_text
from hugging_face_folders import Drawn, assert_close, made, ours, theirs, tokens
from invoke import invoke
from kinds import conformance
from model_folders import edit
from test_hugging_face_folders import altered

from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import CheckpointError
from rosettaformer.files.checkpoints.hugging_face import examine

pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

TEXT = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 20,
}  # fmt: skip
IMAGE = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 14, "patch_size": 7,
}  # fmt: skip
THREE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
GEMMA = {"head_dim": 6, "sliding_window": 3, "query_pre_attn_scalar": 5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
CLIP, UNTIED = IMAGE | {"model_type": "clip_vision_model"}, {"tie_word_embeddings": False}
QWEN_2 = {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 32, "patch_size": 7}
QWEN_2_5 = {
    "depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32, "intermediate_size": 16, "patch_size": 7,
    "fullatt_block_indexes": [0],
}  # fmt: skip
# model_type -> its class, entries of its text model and its vision model, other entries, and the family of the text model
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "gemma3": ("Gemma3", GEMMA, IMAGE, {}, "gemma3_text"),
    "mistral3": ("Mistral3", {"model_type": "mistral", "head_dim": 6}, IMAGE | {"head_dim": 8}, UNTIED, "mistral"),
    "llava": ("Llava", {"model_type": "llama"}, CLIP, UNTIED, "llama"),
    "llava_next": ("LlavaNext", {"model_type": "qwen2"}, CLIP, UNTIED, "qwen2"),
    "qwen2_vl": ("Qwen2VL", THREE, QWEN_2, {}, "qwen2"),
    "qwen2_5_vl": ("Qwen2_5_VL", THREE, QWEN_2_5, {}, "qwen2"),
}  # fmt: skip


def saved(kind: str, folder: Path) -> Any:
    """Saves a random model; returns it."""
    begin, text, image, others, _ = MODELS[kind]
    settings = {"text_config": TEXT | text, "vision_config": image, **others}
    model = made(Drawn(f"{begin}ForConditionalGeneration", settings))
    model.save_pretrained(folder)
    return model


def renamed(folder: Path, old: str, new: str) -> None:
    """Renames the tensors of a folder that have a prefix."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if name.startswith(old)]:
            tensors[new + name.removeprefix(old)] = tensors.pop(name)

    altered(folder, change)


@pytest.mark.parametrize("kind", ["gemma3", *map(conformance, [*MODELS][1:])])
def test_the_text_model_gives_the_librarys_own_numbers(tmp_path: Path, kind: str) -> None:
    """The whole model matches to the precision of float32, in which the library rotates; so does the written text model."""
    library, given = saved(kind, tmp_path / "a"), tokens(TEXT["vocab_size"], "left")
    checkpoint = checkpoints.load(tmp_path / "a")
    checkpoints.save(tmp_path / "b", checkpoint.config, checkpoint.parameters, "hugging-face", foreign=checkpoint.foreign)
    said = json.loads((tmp_path / "b" / "config.json").read_text())
    assert said["model_type"] == MODELS[kind][4] and not {"vision_config", "text_config"} & said.keys()
    with all_in_float64():
        wanted = theirs(loaded_text(tmp_path / "b", said["architectures"][0]), given)
    assert_close(ours(checkpoint, "ForCausalLM", given), wanted, given["mask"], 1e-12)
    every = given | {"mask": np.ones_like(given["mask"])}
    with torch.inference_mode():
        logits = library(input_ids=torch.from_numpy(given["ids"]), attention_mask=torch.from_numpy(every["mask"])).logits
    assert_close({"output": ours(checkpoint, "ForCausalLM", every)["output"]}, {"output": logits.numpy()}, every["mask"], 1e-5)


@pytest.mark.parametrize("kind", [conformance("gemma3"), "qwen2_vl"])
def test_every_prefix_and_form_says_the_same(tmp_path: Path, kind: str) -> None:
    saved(kind, tmp_path)
    first = checkpoints.load(tmp_path)
    flat = kind == "qwen2_vl"
    for old, new in (
        ("model." if flat else "language_model.model.", "model.language_model."),
        ("model.language_model.", "language_model."),
    ):
        if not flat:
            renamed(tmp_path, "language_model.lm_head.", "lm_head.")
        renamed(tmp_path, old, new)
        found = checkpoints.load(tmp_path)
        assert found.config == first.config
        assert all(np.array_equal(array, found.parameters[name]) for name, array in first.parameters.items())
    if flat:  # the entries of the text model among the others, as in files of earlier versions
        said = json.loads((tmp_path / "config.json").read_text())
        text = {name: value for name, value in said["text_config"].items() if name not in ("model_type", "rope_parameters")}
        edit(tmp_path, text_config=..., **text, rope_theta=1e4, rope_scaling={"type": "mrope", "mrope_section": [2, 1, 1]})
        assert checkpoints.load(tmp_path).config == first.config


def test_what_is_left_out_is_named_by_its_part_and_the_rest_is_judged(tmp_path: Path) -> None:
    saved("qwen2_vl", tmp_path)
    found = examine(tmp_path)
    assert {name.partition(".")[0] for name, state in found.states.items() if state == "left out"} == {"visual"}
    shown = invoke("inspect", tmp_path)
    assert shown.code == 0 and shown.out.count("visual") == 1
    edit(tmp_path, quantization_config={"bits": 8})
    with pytest.raises(CheckpointError, match="quantization_config"):
        checkpoints.load(tmp_path)
    edit(tmp_path, quantization_config=..., text_config={"model_type": "phimoe"}, model_type="llava")
    assert invoke("inspect", tmp_path).code == 2
