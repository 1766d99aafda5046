"""Which files of a Hugging Face checkpoint are read, and the messages about invalid ones."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_models import assert_same_bits, random_parameters
from forked import Forks
from hugging_face_folders import Drawn, assert_close, ours, saved, theirs, tokens
from invoke import invoke, refused
from messages import each_mentions, mentions
from model_folders import bert, edit, gpt2
from test_hugging_face_folders import CONFIGS, altered, folder_of, problems_of

from rosettaformer.comparison.one_model.subject import open_subject
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import container
from rosettaformer.judge.suite.checkpoint import checkpoint_cases

torch = pytest.importorskip("torch")


# --- claims


@pytest.mark.parametrize("count", [100_000, 10**9])
@pytest.mark.parametrize("kind", ["gpt2", "bert", "classifier"])
def test_what_is_claimed_and_not_there_takes_no_time_and_no_memory(command: Forks, tmp_path: Path, kind: str, count: int) -> None:
    """Layers, positions, segments, heads, classes, tokens: one error each."""
    names = {
        "gpt2": ("n_layer", "n_positions", "vocab_size"),
        "bert": ("num_hidden_layers", "type_vocab_size"),
        "classifier": ("num_labels",),
    }
    folder = folder_of(tmp_path / "a", CONFIGS[kind])
    edit(folder, **dict.fromkeys(names[kind], count) | ({"id2label": ...} if kind == "classifier" else {}))
    said = command.run("inspect", folder).assert_refused()
    for name in names[kind]:
        assert mentions(said, f"config.json … {'id2label' if name == 'num_labels' else name} {count}")
    assert said.count("missing ") == 0 and said.count("\n") == 1 + len(names[kind]) + said.count("must have shape")
    heads = "n_head" if kind == "gpt2" else "num_attention_heads"
    said = command.run("inspect", edit(folder, **{heads: count})).assert_refused()
    assert f"config.json: {heads} must divide " in said


def test_a_tensor_of_a_layer_that_is_far_away_makes_no_others(command: Forks, tmp_path: Path) -> None:
    far = {"transformer.h.999999999.ln_1.weight": np.ones(12, np.float32)}
    folder = altered(folder_of(tmp_path / "a", CONFIGS["gpt2"]), lambda tensors: tensors.update(far))
    said = command.run("inspect", edit(folder, n_layer=10**9)).assert_refused()
    assert mentions(said, "config.json … n_layer 1000000000 … 2") and "unexpected transformer.h.999999999" in said


# --- config.json


BROKEN: tuple[tuple[Callable[[Path], Any], str], ...] = (
    (lambda path: None, "does not exist"), (lambda path: path.write_text(""), "must be JSON: Expecting value"),
    (lambda path: path.write_text("[]"), "must be a JSON object; got list"),
    (Path.mkdir, "file"), (os.mkfifo, "file"),
    (lambda path: path.write_text('{"model_type": 3}'), "model_type"),
)  # fmt: skip


@pytest.mark.parametrize("pickled", [False, True])
def test_a_broken_config_json_is_named_as_the_cause(tmp_path: Path, pickled: bool) -> None:
    for number, (make, message) in enumerate(BROKEN):
        folder = folder_of(tmp_path / f"a{number}", CONFIGS["bert"])
        if pickled:
            in_torch(folder)
        (folder / "config.json").unlink()
        make(folder / "config.json")
        place = folder / "pytorch_model.bin" if pickled else folder
        for words in (("inspect", place), ("convert", place, tmp_path / "b.safetensors")):
            if words[:2] != ("inspect", folder / "pytorch_model.bin") or message != "does not exist":  # only a file is identified
                assert mentions(refused(*words), f"{folder / 'config.json'} … {message}")


# --- files of torch.save


def in_torch(folder: Path, shards: int = 1) -> None:
    """Replaces the safetensors files by torch.save files."""
    from impl_torch import weights

    file = folder / "model.safetensors"
    state = {name: weights.from_numpy(np.array(array)) for name, array in container.read(file).tensors.items()}
    file.unlink()
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return
    mapped = {name: f"pytorch_model-{index % shards:05}-of-{shards:05}.bin" for index, name in enumerate(state)}
    for shard in {*mapped.values()}:
        torch.save({name: tensor for name, tensor in state.items() if mapped[name] == shard}, folder / shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapped}))


@pytest.mark.parametrize("shards", [1, 3])
def test_files_of_torch_save_are_read_where_there_are_no_safetensors(tmp_path: Path, shards: int) -> None:
    """Safetensors next to them take precedence."""
    for kind, config in CONFIGS.items():
        folder = folder_of(tmp_path / kind, config, dtype="bfloat16" if kind == "gpt2" else None)
        wanted = checkpoints.load(folder)
        content = (folder / "model.safetensors").read_bytes()
        in_torch(folder, shards)
        file = next(folder.glob("pytorch_model.bin*"))
        for path in (folder, file):
            assert_same_bits(checkpoints.load(path).parameters, wanted.parameters)
        assert invoke("convert", file, tmp_path / f"{kind}.safetensors").code == 0
        assert "format hugging-face" in " ".join(invoke("inspect", folder).out.split())
        file.write_bytes(b"damaged")
        with pytest.raises(ValueError, match=r"tensors|index"):
            checkpoints.load(folder)
        (folder / "model.safetensors").write_bytes(content)
        assert_same_bits(checkpoints.load(folder).parameters, wanted.parameters)


@pytest.mark.parametrize("model_type", ["bert", ...])
def test_a_training_checkpoint_in_a_folder_is_told_what_helps(tmp_path: Path, model_type: Any) -> None:
    folder = edit(folder_of(tmp_path / "a", CONFIGS["bert"]), model_type=model_type)
    in_torch(folder)
    file = folder / "pytorch_model.bin"
    state = torch.load(file)
    torch.save({"epoch": 3, "model": state}, file)
    for words in (("inspect", folder), ("convert", folder, tmp_path / "b"), ("convert", file, tmp_path / "b"), ("embed", folder)):
        said = refused(*words)
        assert mentions(said, "a training checkpoint … model … model … torch.save … pytorch_model.bin")
    torch.save(torch.load(file)["model"], file)
    assert checkpoints.load(folder).config == CONFIGS["bert"]


def test_a_folder_as_that_of_bert_tiny(tmp_path: Path) -> None:
    """config.json without model_type and architectures, pytorch_model.bin with gamma and beta and training heads: the results of
    transformers, which is given the class.
    """
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10}
    folder = saved(Drawn("BertForPreTraining", sizes | {"max_position_embeddings": 9}, "float32"), tmp_path / "a")
    library = transformers.BertForMaskedLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    library.config.return_dict = True
    in_torch(folder)
    state = torch.load(folder / "pytorch_model.bin")
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, old in older.items():
        state = {name.replace(new, old): tensor for name, tensor in state.items()}
    torch.save(state, folder / "pytorch_model.bin")
    said = json.loads((folder / "config.json").read_text())
    kept = {name: said[name] for name in (*sizes, "max_position_embeddings", "hidden_act", "type_vocab_size", "hidden_dropout_prob")}
    (folder / "config.json").write_text(json.dumps(kept))
    for words in (("convert", folder, tmp_path / "b"), ("convert", folder / "pytorch_model.bin", tmp_path / "b")):
        assert "--ignore next_sentence_head" in refused(*words)
    assert "heads masked_language_head, pooler" in " ".join(invoke("inspect", folder).out.split())
    checkpoint = checkpoints.load(folder, ignore=["next_sentence_head", "pooler"])
    given = tokens(31, "right", 2)
    assert_close(ours(checkpoint, "BertForMaskedLM", given), theirs(library, given), given["mask"])
    assert invoke("convert", folder, tmp_path / "b", "--ignore", "next_sentence_head").code == 0
    assert json.loads((tmp_path / "b" / "config.json").read_text())["model_type"] == "bert"


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_type_may_be_absent_where_class_or_tensors_tell_it(tmp_path: Path, kind: str) -> None:
    folder = edit(folder_of(tmp_path / "a", CONFIGS[kind]), model_type=...)
    for entries in ({}, {"architectures": None}, {"architectures": ...}):
        assert checkpoints.load(edit(folder, **entries)).config == CONFIGS[kind]
    for classes in (["XLNetModel"], [["BertModel"]], "BertModel"):
        folder = edit(folder_of(tmp_path / f"b{classes}", CONFIGS[kind]), model_type=..., architectures=classes)
        assert "; got None" in refused("inspect", folder)


# --- which of two files


def test_a_file_beside_an_index_is_refused(tmp_path: Path) -> None:
    """transformers reads the file, whose values may differ."""
    folder = folder_of(tmp_path / "a", CONFIGS["gpt2"], max_shard_bytes=3000)
    (folder / "model.safetensors").write_bytes((folder_of(tmp_path / "b", CONFIGS["gpt2"]) / "model.safetensors").read_bytes())
    for words in (("inspect", folder), ("convert", folder, tmp_path / "c"), ("check", "--checkpoint", folder), ("generate", folder)):
        assert mentions(refused(*words), "model.safetensors … model.safetensors.index.json")


# --- entries


def test_entries_that_are_ignored_or_null(tmp_path: Path) -> None:
    """The round trip drops them; null entries change nothing."""
    folder = edit(folder_of(tmp_path / "a", CONFIGS["bert"]), rope_scaling=None, my_note="x", _mine=[1])
    (folder / "generation_config.json").write_text('{"max_time": 5.0, "my_note": 3}')
    assert each_mentions(problems_of(folder), ["config.json: … my_note … --ignore my_note", "config.json: … _mine … --ignore _mine"])
    ignored = ("--ignore", "my_note", "--ignore", "_mine")
    assert mentions(refused("inspect", folder, *ignored, "--ignore", "_min"), "_min … _mine")
    for destination in ("b", "c.safetensors"):
        assert invoke("convert", folder, tmp_path / destination, *ignored).code == 0
    assert invoke("convert", tmp_path / "c.safetensors", tmp_path / "d").code == 0
    for name in ("b", "d"):
        assert json.loads((tmp_path / name / "generation_config.json").read_text()) == {"max_time": 5.0}
        assert checkpoints.load(tmp_path / name).config == CONFIGS["bert"]
    assert invoke("inspect", folder, *ignored).code == 0
    assert_same_bits(checkpoints.load(tmp_path / "d").parameters, random_parameters(CONFIGS["bert"]))


@pytest.mark.conformance
def test_every_command_that_opens_a_folder_ignores_what_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    (tmp_path / "gpt2").mkdir()
    bert(tmp_path / "bert")
    gpt2(tmp_path / "gpt2")
    for name in ("bert", "gpt2"):
        edit(tmp_path / name, my_note=3)
    uses: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
        ("generate", "gpt2", ("--prompt", "the")), ("classify", "bert", ()), ("embed", "bert", ()),
        ("attention", "bert", ("--text", "the", "--out", tmp_path / "page.html")),
    )  # fmt: skip
    for command, name, words in uses:
        line = (command, tmp_path / name, "--backend", "numpy", *words)
        assert mentions(refused(*line, stdin="the\n"), "config.json: … my_note")
        assert invoke(*line, "--ignore", "my_note", stdin="the\n").code == 0
    for command in ("check", "report", "fill-mask"):
        assert "--ignore NAME" in invoke(command, "--help").out
    assert checkpoint_cases(tmp_path / "bert", ignore=["my_note"])
    assert open_subject(tmp_path / "bert", "the", ignore=["my_note"]).tokens["source"] == ["[CLS]", "the", "[SEP]"]
    assert "--ignore my_note needs --checkpoint" in refused("check", "--ignore", "my_note")
