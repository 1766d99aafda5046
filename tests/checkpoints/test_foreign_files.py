"""Files and folders of other programs: every command that reads checkpoints identifies them in one line."""

import argparse
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_models import CONFIG, NAMES, assert_same_bits, random_parameters, torch_model
from huggingface_models import MODELS, saved_names
from huggingface_models import NAMES as LISTS
from invoke import invoke
from kinds import every
from messages import mentions

from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import canonical, container, recognise

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but")

FOLDER = "rosettaformer convert FOLDER NEW.safetensors"
# the remedy for a Hugging Face model
CONVERTED = dict.fromkeys(
    ("BERT", "GPT-2", "Llama", "RoBERTa", "DistilBERT", "OPT", "GPT-Neo", "BART", "mBART", "Pegasus", "Marian"), FOLDER
)
ELSE = "rosettaformer compare transformers:DIR OTHER"
LISTED = json.loads(LISTS.read_text())
CANONICAL = "convert FILE new --from canonical --to canonical"
ALONE = ("inspect FILE", CANONICAL, "check numpy_port.py --checkpoint FILE", "compare-training FILE")
CONVERT = "convert FILE new --from torch-transformer --to canonical --preset nn_transformer --set heads=3"
COMMANDS = (*ALONE, CONVERT)
GIVEN: dict[str, Any] = {"settings": {"heads": 3}, "preset": "nn_transformer", "ignore": ["pe"], **NAMES}


def zipped(*members: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for member in members:
            archive.writestr(member, "x")
    return content.getvalue()


def array(write: Callable[..., None], *values: Any, **named: Any) -> bytes:
    content = io.BytesIO()
    write(content, *values, **named)
    return content.getvalue()


def tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model"), io.BytesIO())
    return content.getvalue()


HTML = "<!DOCTYPE html>\n<html><head><title>model.safetensors</title></head></html>"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 438\n"
ONNX = b"\x08\x0e\x12\x07pytorch:3\n\x0c\n\x01x\x12\x01y"
# file name -> its content, what it is, and the remedy
FILES: dict[str, tuple[bytes, str, str]] = {
    "empty.safetensors": (b"", "empty", "save it again"),
    "empty.pt": (b"", "empty", "save it again"),
    "pointer.safetensors": (LFS.encode(), "a Git LFS pointer", "git lfs pull"),
    "page.safetensors": (HTML.encode(), "a web page", "download the file"),
    "error.safetensors": (b"\xef\xbb\xbf<?xml version='1.0'?><Error/>", "a web page", "download the file"),
    "arrays.npz": (array(np.savez, a=np.ones(3)), "a NumPy archive (.npz)", "rosettaformer.files.checkpoints.save"),
    "array.npy": (array(np.save, np.ones(3)), "NumPy array", "rosettaformer.files.checkpoints.save"),
    "model.keras": (zipped("metadata.json", "config.json", "model.weights.h5"), "a Keras model", "rosettaformer.files.checkpoints.save"),
    "model.weights.h5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file", "rosettaformer.files.checkpoints.save"),
    "ckpt-1.index": (b"\0\0\2\1" + recognise.LEVEL_DB, "a TensorFlow checkpoint", "rosettaformer.files.checkpoints.save"),
    "ckpt-1.data-00000-of-00001": (b"\1\2\3\4", "a TensorFlow checkpoint", "rosettaformer.files.checkpoints.save"),
    "checkpoint": (b'model_checkpoint_path: "ckpt-1"', "a TensorFlow checkpoint", "rosettaformer.files.checkpoints.save"),
    "saved_model.pb": (b"\x08\x01\x12\x99", "a TensorFlow SavedModel", "rosettaformer.files.checkpoints.save"),
    "flax_model.msgpack": (b"\xde\0\x14\xa4key0\x81\xa6kernel", "a msgpack file", "rosettaformer.files.checkpoints.save"),
    "model.onnx": (ONNX, "an ONNX model", "converted from"),
    "model.gguf": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "a GGUF file", "converted from"),
    "model.tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model", "converted from"),
    "model.bin": (struct.pack("<IH", 6, 16) + b"TransformerSpec\0", "a CTranslate2 model", "converted from"),
    "model.pkl": (b"\x80\x04\x95\x0b\0\0\0\0\0\0\0}.", "a Python pickle", "rosettaformer.files.checkpoints.save"),
    "model.tar": (tar(), "an archive", "unpack it"),
    "model.zip": (zipped("model.safetensors"), "a zip archive", "unpack it"),
    "nothing.zip": (zipped(), "an empty zip archive", "save it again"),
    "cut.pt": (zipped("model/data.pkl")[:-30], "a damaged zip archive", "save it again"),
    "script.pt": (zipped("m/data.pkl", "m/constants.pkl"), "a TorchScript archive", "torch.save(model.state_dict(), FILE)"),
    "program.pt2": (zipped("p/archive_format", "p/models/model.json"), "a torch.export program", "torch.save(model.state_dict(), FILE)"),
}
# names of a folder's files -> what it is, and the remedy; config.json is that of a Hugging Face model
FOLDERS: dict[tuple[str, ...], tuple[str, str]] = {
    ("saved_model.pb", "fingerprint.pb"): ("a TensorFlow SavedModel", "rosettaformer.files.checkpoints.save"),
    ("checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"): ("a TensorFlow checkpoint", "rosettaformer.files.checkpoints.save"),
    ("_METADATA", "manifest.ocdbt"): ("an Orbax checkpoint", "rosettaformer.files.checkpoints.save"),
    (".metadata", "__0_0.distcp"): ("a distributed PyTorch checkpoint", "torch.distributed.checkpoint.format_utils"),
    ("config.json", "model.bin", "shared_vocabulary.json"): ("a CTranslate2 model", "converted from"),
    ("config.json", "pytorch_model.bin"): ("a Hugging Face model of type 't5'", "rosettaformer compare transformers:"),
    ("pytorch_model.bin",): ("torch.save file", ": pytorch_model.bin"),
    ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"): ("2 torch.save files", ": pytorch_model-00001-of-00002.bin"),
    ("config.json", "tokenizer.json"): ("'t5'", "rosettaformer compare transformers:"),
    ("adapter_config.json", "README.md"): ("a PEFT adapter", "merge it"),
}


def line_of(command: str, path: Path) -> list[str]:
    return [str(path) if word == "FILE" else str(path.parent / word) if word == "new" else word for word in command.split()]


def refused(command: str, path: Path) -> str:
    """Returns a command's message about a file: one line, exit code 2, quickly, and without output files."""
    before = sorted(path.parent.iterdir())
    said = invoke(*line_of(command, path))
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"Error: {path}") and said.err.count("\n") == 1, said.err
    assert sorted(path.parent.iterdir()) == before
    return said.err


def assert_told(path: Path, what: str, advice: str, commands: tuple[str, ...] = COMMANDS) -> None:
    for command in commands:
        said = refused(command, path)
        assert mentions(said, f"{what} … {advice}"), (command, said)


@pytest.fixture(autouse=True)
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes a port next to the folder that is read."""
    monkeypatch.chdir(tmp_path)
    Path("numpy_port.py").write_text("def softmax(case): return case.inputs['logits']\n")
    (tmp_path / "files").mkdir()


@pytest.mark.parametrize("name", every(3, FILES))
def test_a_file_of_another_program_is_told(tmp_path: Path, name: str) -> None:
    content, what, advice = FILES[name]
    path = tmp_path / "files" / name
    path.write_bytes(content)
    assert_told(path, what, advice)


@pytest.mark.parametrize("names", FOLDERS)
def test_a_folder_of_another_program_is_told(tmp_path: Path, names: tuple[str, ...]) -> None:
    what, advice = FOLDERS[names]
    for name in names:
        (tmp_path / "files" / name).write_text('{"model_type": "t5"}' if name == "config.json" else "")
    assert_told(tmp_path / "files", what, advice)


@pytest.mark.parametrize("name", ["pointer.safetensors", "page.safetensors", "empty.safetensors"])
def test_a_shard_that_is_no_safetensors_is_told(tmp_path: Path, name: str) -> None:
    content, what, advice = FILES[name]
    folder = tmp_path / "files" / "model"
    canonical.save(folder, CONFIG, random_parameters(CONFIG), max_shard_bytes=4000)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(content)
    assert_told(folder, what, advice, ())
    for command in COMMANDS:
        said = invoke(*line_of(command, folder)).err
        assert said.count("\n") == 1 and mentions(said, f"{shard} … {what} … {advice}")


def test_random_bytes_are_told_as_nothing(tmp_path: Path) -> None:
    """They are identified as no kind, and raise no other exception."""
    rng = np.random.default_rng(5)
    path = tmp_path / "a"
    for _ in range(500):
        path.write_bytes(rng.bytes(rng.integers(1, 300)))
        assert recognise.kind_of(path) is None


@pytest.mark.parametrize("first", [0x81, 0x8F, 0xDE, 0x80, 0x08, 0x1F, 0x50])
def test_a_safetensors_header_of_any_length_is_no_other_kind(tmp_path: Path, first: int) -> None:
    """Its first bytes are the header's length, whatever text they form."""
    path = tmp_path / "a.safetensors"
    for second in (0x02, 0x4B, 0xA6, 0x8B, 0x12):
        path.write_bytes(struct.pack("<Q", 0x4141_0000 + 256 * second + first) + b'{"a":' + bytes(50))
        assert recognise.kind_of(path) is recognise.SAFETENSORS


# --- files of torch.save


def test_a_file_of_torch_save_where_safetensors_is_due(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for name, zip_format in (("model.pt", True), ("model.safetensors", True), ("old.pt", False), ("old.safetensors", False)):
        path = tmp_path / "files" / name
        torch.save(torch_model().state_dict(), path, _use_new_zipfile_serialization=zip_format)
        assert_told(path, "a torch.save file", "rosettaformer convert FILE NEW.safetensors --from torch-transformer", ALONE[1:])
        assert checkpoints.load(path, "torch-transformer", **GIVEN).config == CONFIG  # whatever its suffix


@pytest.mark.parametrize("zip_format", [True, False])
def test_a_pickled_module(tmp_path: Path, zip_format: bool) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "files" / "model.pt"
    torch.save(torch.nn.Linear(3, 3), path, _use_new_zipfile_serialization=zip_format)
    what, advice = "class torch.nn.modules.linear.Linear", "torch.save(model.state_dict(), FILE)"
    assert_told(path, what, advice, (ALONE[0], CONVERT))


def lightning(state: dict[str, Any]) -> dict[str, Any]:
    """Writes a file like Lightning's ModelCheckpoint, with hyperparameters of a foreign class."""
    return {
        "epoch": 3, "global_step": 40, "pytorch-lightning_version": "2.5.0", "loops": {"fit_loop": {"state_dict": {}}}, "callbacks": {},
        "state_dict": {f"model.{name}": value for name, value in state.items()}, "lr_schedulers": [],
        "optimizer_states": [{"state": {0: {"exp_avg": state["generator.bias"]}}, "param_groups": [{"lr": 1e-3}]}],
        "hparams_name": "kwargs", "hyper_parameters": argparse.Namespace(width=12, path=Path("data")),
    }  # fmt: skip


def test_a_lightning_checkpoint(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "files" / "epoch=3.ckpt"
    model = torch_model()
    torch.save(lightning(model.state_dict()), path)
    what = "a Lightning checkpoint … state_dict"
    assert_told(path, what, "--key state_dict … model.: … prefix", (ALONE[0], CONVERT))
    names = "--name source_embedding=model.source --name target_embedding=model.target --name logits=model.generator --ignore model.pe"
    command = f"{CONVERT} {names} --key state_dict"
    converted = invoke(*line_of(command, path))
    assert converted.code == 0, converted
    torch.save(model.state_dict(), tmp_path / "state.pt")
    direct = checkpoints.load("state.pt", "torch-transformer", **GIVEN)
    assert canonical.load(tmp_path / "files" / "new").config == CONFIG
    assert_same_bits(canonical.load(tmp_path / "files" / "new").parameters, direct.parameters)
    shown = json.loads(invoke("inspect", path, "--key", "state_dict", "--json").out)
    assert shown["recognised"].count("torch.nn.Transformer")
    assert {row["name"] for row in shown["tensors"]} == {f"model.{name}" for name in model.state_dict()}


@pytest.mark.parametrize("key", ["model", "model_state_dict", "net", "ema_weights"])
def test_a_training_checkpoint(tmp_path: Path, key: str) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "files" / "last.pt"
    torch.save({"epoch": 1, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}, key: torch_model().state_dict()}, path)
    assert_told(path, f"a training checkpoint … {key}", f"--key {key}", (ALONE[0], CONVERT))
    assert checkpoints.load(path, "torch-transformer", key=key, **GIVEN).config == CONFIG


def test_a_wrong_key(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"epoch": 1, "state_dict": {"a": torch.ones(2)}}, "last.pt")
    with pytest.raises(ValueError, match=r"--key state_dic.*last\.pt.*nearest: state_dict.*epoch, state_dict"):
        checkpoints.load("last.pt", "torch-transformer", key="state_dic")
    with pytest.raises(ValueError, match="got a int"):
        checkpoints.load("last.pt", "torch-transformer", key="epoch")
    container.write(Path("a.safetensors"), {"a": np.ones(2)}, {})
    with pytest.raises(ValueError, match=r"--key .*a\.safetensors"):
        checkpoints.load("a.safetensors", "torch-transformer", key="state_dict")


def test_what_stands_for_unknown_classes_runs_nothing(tmp_path: Path) -> None:
    """Every pickle operation on a class that is not imported: construction with and without arguments, state, calls."""
    torch = pytest.importorskip("torch")

    class Calls:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, ("open('ran', 'w')",), {"x": 1})

    torch.save({"state_dict": {"a": torch.ones(2)}, "more": [Calls(), argparse.Namespace(a=Calls())]}, "model.pt")
    with pytest.raises(checkpoints.CheckpointError):
        checkpoints.load("model.pt", "torch-transformer", key="state_dict")
    assert not Path("ran").exists()


# --- architectures, by the names of their tensors


def write_named(path: Path, names: list[str]) -> Path:
    container.write(path, {name: np.ones((2, 2), np.float32) for name in names}, {"format": "pt"})
    return path


@pytest.mark.parametrize("model", every(4, MODELS))
def test_a_model_of_hugging_face_is_told(tmp_path: Path, model: str) -> None:
    path = write_named(tmp_path / "files" / "model.safetensors", LISTED[model])
    family = MODELS[model][0]
    assert_told(path, f"a Hugging Face {family}", CONVERTED.get(family, ELSE), (*ALONE[1:], CONVERT))
    shown, code = invoke("inspect", path), 0 if any(word in CONVERTED for word in family.split()) else 2
    assert (shown.code, f"a Hugging Face {family}" in " ".join(shown.out.split())[:400]) == (code, True)
    (tmp_path / "files" / "config.json").write_text('{"model_type": "its-own_name"}')
    assert_told(path, "a Hugging Face model of type 'its-own_name'", "new-port", (*ALONE[1:], CONVERT))


@pytest.mark.parametrize(
    "model", ["BertModel", "GPT2LMHeadModel", "MarianMTModel", "BartModel", "T5ForConditionalGeneration", "LlamaModel"]
)
def test_a_model_of_hugging_face_in_a_bin_and_in_shards(tmp_path: Path, model: str) -> None:
    torch = pytest.importorskip("torch")
    what, advice = f"a Hugging Face {MODELS[model][0]}", CONVERTED.get(MODELS[model][0], ELSE)
    path = tmp_path / "files" / "pytorch_model.bin"
    torch.save({name: torch.ones(2, 2) for name in LISTED[model]}, path)
    assert_told(path, what, advice, (CONVERT,))
    path.unlink()
    shards = {"model-00001-of-00002.safetensors": LISTED[model][::2], "model-00002-of-00002.safetensors": LISTED[model][1::2]}
    for shard, names in shards.items():
        write_named(tmp_path / "files" / shard, names)
    weight_map = {name: shard for shard, names in shards.items() for name in names}
    (tmp_path / "files" / container.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_told(tmp_path / "files", what, advice, (*ALONE[1:], CONVERT))
    assert_told(tmp_path / "files" / container.INDEX, what, advice, (*ALONE[1:], CONVERT))


OTHERS = {
    "a fairseq Transformer": ["encoder.embed_tokens.weight", "decoder.layers.0.encoder_attn.k_proj.weight", "decoder.version"],
    "a Llama in Meta's format": ["tok_embeddings.weight", "layers.0.attention.wq.weight"],
    "an OpenNMT Transformer": ["encoder.transformer.0.self_attn.linear_keys.weight", "decoder.embeddings.make_embedding.emb_luts.0.weight"],
    "an Annotated Transformer": ["encoder.layers.0.self_attn.linears.0.weight", "src_embed.0.lut.weight"],
    "torch.nn.TransformerEncoder or TransformerDecoder": ["layers.0.self_attn.in_proj_weight"],
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_transformers_are_told(tmp_path: Path, what: str) -> None:
    path = write_named(tmp_path / "files" / "model.safetensors", OTHERS[what])
    assert_told(path, what, " ", (*ALONE[1:], CONVERT))


def test_a_state_dict_of_torch_nn_transformer_where_a_canonical_file_is_due(tmp_path: Path) -> None:
    path = tmp_path / "files" / "state.safetensors"
    checkpoints.save(path, CONFIG, random_parameters(CONFIG), "torch-transformer")
    assert_told(path, "torch.nn.Transformer", "rosettaformer convert FILE NEW.safetensors", ALONE[1:])


def test_no_model_of_ours_or_of_torch_is_taken_for_another(tmp_path: Path) -> None:
    """Tensors of another model do no harm next to those of nn.Transformer, nor do canonical names."""
    assert recognise.describe(random_parameters(CONFIG), tmp_path / "a") is None
    checkpoints.save(tmp_path / "a.safetensors", CONFIG, random_parameters(CONFIG), "torch-transformer")
    state = dict(container.read(tmp_path / "a.safetensors").tensors)
    state["tagger.encoder.layer.0.attention.self.query.weight"] = np.ones((2, 2), np.float32)
    container.write(tmp_path / "b.safetensors", state, {})
    given = {"preset": "nn_transformer", "settings": {"heads": 3}}
    with pytest.raises(checkpoints.CheckpointError, match="unexpected tagger"):
        checkpoints.load(tmp_path / "b.safetensors", "torch-transformer", **given)
    ignored = [name for name in state if name.startswith("tagger")]
    assert checkpoints.load(tmp_path / "b.safetensors", "torch-transformer", ignore=ignored, **given).config == CONFIG


def test_names_without_a_norm_are_no_size_0(tmp_path: Path) -> None:
    names = ["encoder.layers.0.self_attn.in_proj_weight", "encoder.layers.0.linear1.weight", "source_embedding.weight"]
    path = write_named(tmp_path / "a.safetensors", names)
    with pytest.raises(checkpoints.CheckpointError, match=r"encoder\.layers\.0\.norm1\.weight"):
        checkpoints.load(path, "torch-transformer", preset="nn_transformer")


@pytest.mark.conformance
@pytest.mark.parametrize("model", MODELS)
def test_the_stored_names_are_those_of_the_library(model: str) -> None:
    pytest.importorskip("transformers")
    assert saved_names(model) == LISTED[model]


@pytest.mark.conformance
def test_files_that_the_libraries_write_are_told(tmp_path: Path) -> None:
    """The bytes above, written by the libraries that define the formats."""
    torch, tf, keras = (pytest.importorskip(name) for name in ("torch", "tensorflow", "keras"))
    flax, orbax = pytest.importorskip("flax.serialization"), pytest.importorskip("orbax.checkpoint")
    distributed = pytest.importorskip("torch.distributed.checkpoint")
    module, tree = torch.nn.Linear(3, 3), {"params": {"kernel": np.ones((3, 3), np.float32)}}
    torch.jit.save(torch.jit.script(module), "script.pt")
    torch.export.save(torch.export.export(module, (torch.zeros(2, 3),)), "program.pt2")
    distributed.save(module.state_dict(), checkpoint_id="distributed")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(3)])
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    model.export("saved")
    tf.train.Checkpoint(model=model).save("checkpoint/ckpt")
    Path("flax_model").write_bytes(flax.to_bytes(tree))
    with orbax.StandardCheckpointer() as writer:
        writer.save(tmp_path / "orbax", tree)
    expected = {
        "script.pt": "a TorchScript archive", "program.pt2": "a torch.export program", "model.keras": "a Keras model",
        "model.weights.h5": "an HDF5 file", "checkpoint/ckpt-1.index": "a TensorFlow checkpoint", "flax_model": "a msgpack file",
        "checkpoint/ckpt-1.data-00000-of-00001": "a TensorFlow checkpoint", "checkpoint/checkpoint": "a TensorFlow checkpoint",
        "saved/saved_model.pb": "a TensorFlow SavedModel", "distributed": "a distributed PyTorch checkpoint",
        "saved": "a TensorFlow SavedModel", "checkpoint": "a TensorFlow checkpoint", "orbax": "an Orbax checkpoint",
    }  # fmt: skip
    for name, what in expected.items():
        with pytest.raises(recognise.ForeignError, match=what.replace("(", r"\(")):
            container.read(Path(name))
