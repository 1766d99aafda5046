"""Invalid Hugging Face checkpoints, and the commands on valid ones."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_models import assert_same_bits, random_parameters
from forked import Forks
from invoke import invoke, succeeded
from messages import each_mentions, mentions
from model_folders import edit

from reference_numpy import TransformerConfig, parameters, preset
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import CheckpointError, container

SIZES = {"model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "feed_forward_width": 20, "max_positions": 9}
BERT = preset("bert_base", **SIZES, encoder_layers=3, source_vocabulary=31, target_vocabulary=31, padding_id=None)
GPT2 = preset("gpt2_small", **SIZES, decoder_layers=2, source_vocabulary=31, target_vocabulary=31)
CONFIGS = {"bert": BERT.replace(pooler=False), "classifier": BERT.replace(masked_language_head=False, classes=4), "gpt2": GPT2}
WEIGHT = "bert.encoder.layer.1.attention.self.key.weight"


def folder_of(path: Path, config: TransformerConfig, **options: Any) -> Path:
    checkpoints.save(path, config, random_parameters(config), "hugging-face", **options)
    return path


def altered(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> Path:
    """Returns the folder with other tensors."""
    tensors = {name: np.array(array) for name, array in container.read(folder).tensors.items()}
    change(tensors)
    (folder / "model.safetensors").unlink()
    container.write(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder


def problems_of(folder: Path, **options: Any) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(folder, **options)
    return caught.value.problems


# --- bad folders


def test_all_problems_of_a_folder_at_once(tmp_path: Path) -> None:
    """Entries and tensors: none hides another, and the conversion report counts the tensors."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["bert.embeddings.LayerNorm.weight"][0] = np.nan
        tensors[WEIGHT] = tensors[WEIGHT][:, :-1]
        tensors["bert.encoder.layer.0.output.dense.bias"] = tensors["bert.encoder.layer.0.output.dense.bias"].astype(np.int32)
        tensors["bert.encoder.layer.2.output.dense.biass"] = tensors.pop("bert.encoder.layer.2.output.dense.bias")
        for layer in (0, 2):
            del tensors[f"bert.encoder.layer.{layer}.attention.self.key.bias"]
        tensors["cls.seq_relationship.weight"] = np.ones((2, 12), np.float32)
        tensors["cls.predictions.decoder.weight"] = np.ones((31, 12), np.float32)

    folder = altered(folder_of(tmp_path / "a", CONFIGS["bert"]), change)
    assert each_mentions(
        problems_of(folder),
        [
            "cls.seq_relationship.weight … next_sentence_head … --ignore next_sentence_head",
            "cls.predictions.decoder.weight … bert.embeddings.word_embeddings.weight … tie_word_embeddings",
            *(
                f"missing bert.encoder.layer.{name}.bias … (12,) … bert.encoder.layer.2.output.dense.biass"
                for name in ("0.attention.self.key", "2.attention.self.key", "2.output.dense")
            ),
            f"{WEIGHT} … (12, 12) … (12, 11)",
            "unexpected bert.encoder.layer.2.output.dense.biass … bert.encoder.layer.2.output.dense.bias",
            "bert.encoder.layer.0.output.dense.bias … int32",
            "bert.embeddings.LayerNorm.weight … 1 NaN … 12",
        ],
    )
    said = invoke("convert", folder, tmp_path / "b", "--dry-run", "--json")
    assert said.code == 2 and "output.dense.biass" in said.err and not (tmp_path / "b").exists()
    report = json.loads(said.out)
    lines = {line["name"].removeprefix("bert.encoder.layer."): (line["state"], line["layers"]) for line in report["tensors"]}
    assert lines["{0,2}.attention.self.key.bias"] == ("missing", 2) and lines["2.output.dense.biass"] == ("unexpected", 1)
    assert lines["1.attention.self.key.weight"] == ("shape", 1) and lines["0.output.dense.bias"] == ("dtype", 1)
    assert lines["{0..2}.attention.self.query.bias"] == ("matched", 3)
    assert report["counts"]["missing"] == 3 and len(report["problems"]) == 9
    found = problems_of(edit(folder, hidden_act="silu", num_attention_heads=5, is_decoder=True, hiden_size=3), ignore=["nothing"])
    for message in (
        "--ignore nothing", "config.json: hidden_act", "got \"silu\"",
        "config.json: is_decoder",
        "config.json: … hiden_size … BERT … hidden_size", "cls.seq_relationship.weight … next_sentence_head",
    ):  # fmt: skip
        assert any(mentions(problem, message) for problem in found), (message, found)


@pytest.mark.parametrize("width", [None, "12", [12]])
def test_what_follows_from_a_width_that_is_no_number_is_not_said(tmp_path: Path, width: Any) -> None:
    """n_inner defaults to four times n_embd."""
    folder = edit(folder_of(tmp_path / "a", CONFIGS["gpt2"]), n_embd=width, n_inner=None)
    assert each_mentions(problems_of(folder), [f"config.json … n_embd … n_head … {width!r} … 3"])


def test_missing_shards(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", CONFIGS["gpt2"], max_shard_bytes=3000)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 4
    for shard in shards[1:3]:
        shard.unlink()
    found = problems_of(folder)
    assert len(found) == 2  # errors that only follow from it are left out
    assert all(shard.name in problem and "missing" in problem for shard, problem in zip(shards[1:3], found, strict=True))


def test_a_folder_without_safetensors_runs_nothing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", CONFIGS["gpt2"])
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    with pytest.raises(ValueError, match=r"'gpt2'.*model.save_pretrained"):
        checkpoints.load(folder)


@pytest.mark.parametrize(
    ("kind", "architecture", "extra", "head"),
    [
        ("bert", "BertForTokenClassification", {"classifier.weight": (3, 12), "classifier.bias": (3,)}, "token_classifier"),
        ("bert", "BertForMaskedLM", {"classifier.weight": (3, 12), "classifier.bias": (3,)}, "classifier"),
        ("bert", "BertForQuestionAnswering", {"qa_outputs.weight": (2, 12), "qa_outputs.bias": (2,)}, "question_answering_head"),
        ("gpt2", "GPT2ForSequenceClassification", {"score.weight": (3, 12)}, "sequence_classifier"),
    ],
)
def test_the_tensors_of_a_fine_tuned_head(
    tmp_path: Path, kind: str, architecture: str, extra: dict[str, tuple[int, ...]], head: str
) -> None:
    """The message names it and the option to drop it; the rest is read."""
    folder = folder_of(tmp_path / "a", CONFIGS[kind])
    altered(folder, lambda tensors: tensors.update({name: np.ones(shape, np.float32) for name, shape in extra.items()}))
    edit(folder, architectures=[architecture])
    (problem,) = problems_of(folder)
    assert f"--ignore {head} " in problem
    loaded = checkpoints.load(folder, ignore=[head])
    assert loaded.config == CONFIGS[kind]
    assert_same_bits(loaded.parameters, random_parameters(CONFIGS[kind]))
    with pytest.raises(CheckpointError, match="poler"):
        checkpoints.load(folder, ignore=[head, "poler"])


@pytest.mark.parametrize(
    ("shape", "pooled", "entries", "head"),
    [
        ((1, 12), True, {}, "multiple_choice_head"),
        ((1, 12), True, {"id2label": {"0": "a"}}, None),
        ((4, 12), True, {"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}}, None),
        ((2, 12), True, {}, None),
        ((2, 12), False, {}, "token_classifier"),
        ((1, 12), False, {"num_labels": 1}, "token_classifier"),
    ],
)
def test_a_classifier_whose_class_is_not_named(
    tmp_path: Path, shape: tuple[int, ...], pooled: bool, entries: dict[str, Any], head: str | None
) -> None:
    """Three heads have tensors of these names: the shapes and the pooler decide as far as possible."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors |= {"classifier.weight": np.ones(shape, np.float32), "classifier.bias": np.ones(shape[:1], np.float32)}
        if not pooled:
            del tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"]

    folder = altered(folder_of(tmp_path / "a", CONFIGS["classifier"]), change)
    edit(folder, architectures=..., **{"id2label": ..., "label2id": ..., **entries})
    if head is None:
        assert checkpoints.load(folder).config == CONFIGS["classifier"].replace(classes=shape[0])
        return
    advice = f"--ignore {head} "
    tells = f"{head} … {advice}"
    (problem,) = problems_of(folder)
    assert mentions(problem, f"classifier.bias … {tells}")
    read = checkpoints.load(folder, ignore=[head]).config
    assert read == CONFIGS["classifier"].replace(classes=0, pooler=pooled)


def test_a_file_without_tensors_is_that(tmp_path: Path) -> None:
    folder = altered(folder_of(tmp_path / "a", CONFIGS["bert"]), dict.clear)
    assert each_mentions(problems_of(folder), ["no tensors"])


def test_a_head_that_is_not_there(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", CONFIGS["bert"])
    edit(folder, architectures=["BertForSequenceClassification"])
    found = problems_of(folder)
    assert each_mentions(found, ["pooler … --ignore pooler", "classifier … --ignore classifier"])
    assert checkpoints.load(folder, ignore=["pooler", "classifier"]).config == CONFIGS["bert"]


# --- old folders


def test_what_older_folders_hold(tmp_path: Path) -> None:
    """No prefix, gamma and beta, buffers, a tied kernel and a bias twice, a pooler next to the head, no architectures."""

    def older(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            new = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[new] = tensors.pop(name)
        tensors["cls.predictions.decoder.weight"] = tensors["embeddings.word_embeddings.weight"].copy()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
        tensors["embeddings.position_ids"] = np.arange(9)[None]

    folder = altered(folder_of(tmp_path / "a", BERT), older)
    edit(folder, architectures=None, position_embedding_type="absolute", gradient_checkpointing=False, pooler_type="first_token_transform")
    loaded = checkpoints.load(folder)
    assert loaded.config == BERT
    assert_same_bits(loaded.parameters, random_parameters(BERT))
    buffers = [f"transformer.h.{layer}.attn.{name}" for layer in (0, 1) for name in ("bias", "masked_bias")]
    folder = altered(folder_of(tmp_path / "b", GPT2), lambda tensors: tensors.update(dict.fromkeys(buffers, np.ones(1, np.uint8))))
    edit(folder, n_ctx=9, hidden_size=12, n_embd=...)
    assert_same_bits(checkpoints.load(folder).parameters, random_parameters(GPT2))


# --- writing


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 1e-3, "key_value_heads": 1}, "has key_value_heads=3; got 1"),
        ({"position_start": "first_token"}, "max_position_embeddings … pad_token_id + 2"),
        ({"norm_placement": "pre", "final_norm": True}, "BERT has final_norm=False; got True"),
        ({"classes": 3}, "BERT … masked_language_head"),
    ],
)
def test_what_no_family_has_is_not_written(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = BERT.replace(**changes)
    with pytest.raises(CheckpointError) as caught:
        folder_of(tmp_path / "a", config)
    assert mentions(str(caught.value), message) and os.listdir(tmp_path) == []


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", GPT2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=r"a .*Hugging Face"):
        folder_of(folder, GPT2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("kind", CONFIGS)
def test_convert_inspect_and_the_load_report(tmp_path: Path, kind: str) -> None:
    config = CONFIGS[kind]
    folder, new, file = folder_of(tmp_path / "a", config), tmp_path / "b", tmp_path / "c.safetensors"
    (folder / "tokenizer.json").write_text('{"model": 1}')
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    labels = {str(number): f"class {number}" for number in range(config.classes or 2)}
    edit(folder, id2label=labels, eos_token_id=7)
    succeeded("convert", folder, file)
    loaded = checkpoints.load(file)
    assert loaded.config == config and loaded.foreign["config.json"]["id2label"] == labels
    succeeded("convert", file, new, "--tokenizer", folder)
    for path in folder.glob("*.safetensors"):
        assert (new / path.name).read_bytes() == path.read_bytes()
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert json.loads((new / name).read_text()) == json.loads((folder / name).read_text())
    succeeded("convert", folder, tmp_path / "d", "--dtype", "bfloat16", "--max-shard-bytes", 4000)
    assert (tmp_path / "d" / "tokenizer.json").exists() and json.loads((tmp_path / "d" / "config.json").read_text())["dtype"] == "bfloat16"
    assert len(list((tmp_path / "d").glob("*.safetensors"))) > 1
    shown = " ".join(invoke("inspect", folder).out.split())
    family = "GPT-2, GPT2LMHeadModel" if kind == "gpt2" else "BERT, "
    assert f"family {family}" in shown and f"parameters {parameters.count(config):,}" in shown and "format hugging-face" in shown
    report = invoke("convert", folder, tmp_path / "x", "--dry-run").out
    layers = "h.{0..1}.ln_1.weight" if kind == "gpt2" else "bert.encoder.layer.{0..2}.attention.self.query.weight"
    assert layers in report and "0 missing, 0 unexpected" in report and not (tmp_path / "x").exists()
    assert invoke("convert", file, tmp_path / "x", "--dry-run").out.count("{0..") > 5


# --- large models


LARGE = preset(
    "gpt2_small", model_width=1024, heads=16, key_value_heads=16, feed_forward_width=4096, decoder_layers=6, target_vocabulary=300,
    source_vocabulary=300,
)  # fmt: skip


def memory_of(*arguments: object) -> int:
    """Returns the peak memory of the command in bytes."""
    code = "try: main(sys.argv[1:])\nfinally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    line = [sys.executable, "-c", f"import resource, sys; from rosettaformer.cli import main\n{code}", *map(str, arguments)]
    return 1024 * int(subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()[-1])


@pytest.mark.conformance
def test_converting_takes_the_memory_of_a_few_tensors(tmp_path: Path) -> None:
    """A third of 300 MB of float32 more than the command's baseline; in both directions, one tensor at a time."""
    arrays = {name: np.broadcast_to(np.float32(0.5), shape) for name, shape in parameters.shapes(LARGE).items()}
    checkpoints.save(large := tmp_path / "large", LARGE, arrays, "hugging-face")
    size, small = (large / "model.safetensors").stat().st_size, folder_of(tmp_path / "small", GPT2)
    least = memory_of("convert", small, tmp_path / "small.safetensors")
    assert size > 300e6
    for source, destination in ((large, "a.safetensors"), (tmp_path / "a.safetensors", "b")):
        assert memory_of("convert", source, tmp_path / destination) - least < size / 3
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (large / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("destination", ["new.safetensors", "new"])
def test_a_conversion_that_is_interrupted_leaves_nothing_that_looks_whole(
    command: Forks, tmp_path: Path, number: signal.Signals, destination: str
) -> None:
    """Interrupted after its first tensor."""
    folder, out = folder_of(tmp_path / "a", GPT2), tmp_path / "out"
    out.mkdir()
    before = (
        "import os, signal; from rosettaformer.files.checkpoints import container\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"container.release = lambda array: os.kill(os.getpid(), {number})"
    )
    assert command.run("convert", folder, out / destination, before=before).code in (130, 128 + number, -number)
    assert os.listdir(out) == [] if number != signal.SIGKILL else re.fullmatch(r"\..*\.tmp", *os.listdir(out))
