"""`rosettaformer generate --artefact`: an exported model computes the same tokens as its checkpoint."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import refused, succeeded
from kinds import conformance
from messages import mentions
from model_folders import NUMPY, bert, edit, gpt2, modern
from onnx_exports import export_with_cache

from reference_numpy import TransformerConfig, parameters, transformer
from reference_numpy.values import Text
from rosettaformer.files import checkpoints
from rosettaformer.files.artefacts import export as exporting
from rosettaformer.files.artefacts.export.functions import of_config
from rosettaformer.files.artefacts.kinds import KINDS
from rosettaformer.files.artefacts.manifest import Manifest
from rosettaformer.files.artefacts.signature import Entry, Tensor
from rosettaformer.use.inference.tokenizer import Tokenizer

PROMPTS = ("--prompt", "the quick", "--prompt", "née", "--prompt", "a")
SEARCHES = {
    "greedy": ("--set", "repetition_penalty=1.5"),
    "sampling": ("--do-sample", "--set", "num_return_sequences=2", "--seed", 3, "--temperature", 2),
    "beams": ("--num-beams", 3, "--set", "num_return_sequences=2", "--set", "no_repeat_ngram_size=2"),
}
IN_STEPS, WHOLE = ("forward", "step"), ("forward",)
Arrays = Mapping[str, np.ndarray]


def tokens(*words: object, most: int = 6) -> list[list[int]]:
    """Returns the tokens of every answer to the prompts."""
    return [row["tokens"] for row in succeeded("generate", *words, *PROMPTS, "--json", "--max-new-tokens", most).rows]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a GPT-2 folder, and a copy without weights."""
    whole = tmp_path_factory.mktemp("whole")
    gpt2(whole, 5, n_layer=1)
    return whole, without_weights(whole, tmp_path_factory.mktemp("bare") / "dir")


def without_weights(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.safetensors")))


class Stub:
    """A `Bundle` computed by the reference; its keys contain the ids read so far."""

    manifest: Manifest | None = None
    versions: Mapping[str, str] = {}

    def __init__(self, folder: Path, names: tuple[str, ...] = IN_STEPS, change: Callable[[Entry], Entry] = lambda entry: entry) -> None:
        read = checkpoints.load(folder)
        self.config, self._tree = read.config, parameters.nest(read.parameters)
        self.names, self.allowed = names, False
        self._entries = {name: change(entry) for name, entry in of_config(self.config, "float32").items()}

    def entry(self, name: str) -> Entry:
        return self._entries[name]

    def run(self, name: str, inputs: Arrays) -> dict[str, np.ndarray]:
        target, before = inputs["target"], 0
        mask = inputs.get("target_mask_bt", inputs.get("target_mask_bs"))
        if name == "step":
            before = inputs["keys_lbsgk"].shape[2]
            target = np.concatenate([inputs["keys_lbsgk"][0, :, :, 0, 0].astype(int), target], axis=1)
        logits = transformer.transformer(self._tree, self.config, None, Text(target, mask))
        kept = np.zeros((1, *target.shape, self.config.key_value_heads, self.config.key_size), np.float32)
        kept[0, :, :, 0, 0] = target
        return {"logits_btv": logits[:, before:], "keys_lbsgk": kept, "values_lbsge": kept}


@pytest.fixture
def stubbed(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces every file by a stub."""

    def put(*arguments: Any, **said: Any) -> Stub:
        stub = Stub(folders[0], *arguments)
        for name, value in said.items():
            setattr(stub, name, value)

        def opened(path: Path, allow_code: bool) -> Stub:
            stub.allowed = allow_code
            return stub

        monkeypatch.setattr("rosettaformer.use.inference.artefact_model.Bundle", opened)
        return stub

    return put


def manifest(config: TransformerConfig) -> Manifest:
    return Manifest("onnx", "float32", "refused", config.to_dict(), {}, {}, {})


@pytest.mark.parametrize("names", [IN_STEPS, WHOLE], ids=["in_steps", "anew"])
def test_every_search_is_that_of_the_checkpoint(folders: tuple[Path, Path], stubbed: Any, names: tuple[str, ...]) -> None:
    """With and without a cache; rows are left-padded."""
    whole, bare = folders
    stub = stubbed(names)
    for words in SEARCHES.values():
        assert tokens(bare, "--artefact", "model", *words) == tokens(whole, *NUMPY, *words)
    assert not stub.allowed
    tokens(bare, "--artefact", "model", "--allow-code")
    assert stub.allowed


def test_the_config_is_the_manifest_s_and_must_be_the_folder_s(folders: tuple[Path, Path], stubbed: Any, tmp_path: Path) -> None:
    whole, bare = folders
    config = Stub(whole).config
    stubbed(manifest=manifest(config.replace(tie_logits=False, dropout_rate=0.5)))  # neither affects the output
    wanted = tokens(whole, *NUMPY)
    assert tokens(bare, "--artefact", "model") == wanted
    lone = without_weights(whole, tmp_path / "lone")
    (lone / "config.json").unlink()
    (lone / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert tokens(lone, "--artefact", "model") == wanted
    stubbed(manifest=manifest(config.replace(decoder_layers=2, epsilon=0.5)))
    errors = refused("generate", bare, "--artefact", "model", *PROMPTS)
    assert mentions(errors, "config.json … manifest")
    assert mentions(errors, "decoder_layers … 1 and 2 … epsilon … 1e-05 and 0.5")


def test_other_models_are_refused_as_in_a_folder(stubbed: Any, tmp_path: Path) -> None:
    bert(tmp_path)
    stubbed()
    errors = refused("generate", tmp_path, "--artefact", "model", *PROMPTS)
    assert mentions(errors, "decoder … GPT-2 … Llama … encoder_layers=2 … decoder_layers=0")


def fixed(rows: int | str, length: int | str) -> Callable[[Entry], Entry]:
    """Returns a change that fixes these sizes of the tokens."""

    def change(entry: Entry) -> Entry:
        return dataclasses.replace(entry, inputs=(Tensor("target", "int64", (rows, length)), *entry.inputs[1:]))

    return change


def outputs(name: str, vocabulary: int) -> Callable[[Entry], Entry]:
    """Returns a change of the logits' name, and of their count."""
    return lambda entry: dataclasses.replace(entry, outputs=(Tensor(name, "float32", ("b", "t", vocabulary)), *entry.outputs[1:]))


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (IN_STEPS, fixed(2, "t"), "target int64[2, t]; got 3 rows of "),
        (IN_STEPS, fixed("b", 3), "target int64[b, 3]; got 3 rows of "),
        (WHOLE, fixed(3, 8), "file … 8"),
        (WHOLE, outputs("hidden", 12), "hidden float32[b, t, 12]"),
        (WHOLE, outputs("logits", 19), "300 … config.json … 19"),
    ],
)
def test_a_file_that_has_no_room_says_what_it_takes(
    folders: tuple[Path, Path], stubbed: Any, names: tuple[str, ...], change: Any, message: str
) -> None:
    stubbed(names, change)
    assert mentions(refused("generate", folders[1], "--artefact", "model", *PROMPTS), message)


def test_a_step_of_one_token_reads_a_prompt_token_by_token(folders: tuple[Path, Path], stubbed: Any) -> None:
    stubbed()
    free = tokens(folders[1], "--artefact", "model")
    one = stubbed(IN_STEPS, fixed("b", 1))
    lengths = set()
    run = one.run
    one.run = lambda name, inputs: (lengths.add(inputs["target"].shape[1]), run(name, inputs))[1]
    assert tokens(folders[1], "--artefact", "model") == free
    assert lengths == {1}


def test_what_a_runtime_raises_is_one_message(folders: tuple[Path, Path], stubbed: Any) -> None:
    def run(name: str, inputs: Arrays) -> None:
        raise type("Fail", (Exception,), {})("Gather node:\n  idx=7")

    stubbed(run=run)
    errors = refused("generate", folders[1], "--artefact", "model", *PROMPTS)
    assert "4 tokens of 3 rows; Fail: Gather node: idx=7" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--artefact", "m", "--backend", "numpy"), "--backend … --artefact"),
        (("--artefact", "m", "--mesh", "data=2"), "--mesh … --artefact"),
        (("--allow-code",), "--allow-code has no effect without --artefact"),
        (("--artefact", "m", "--tensor", "a=b"), "the meaning of --tensor a must be"),
        (("--artefact", "none.onnx"), "none.onnx"),
        (("--artefact", __file__), "ONNX … torch.export"),
    ],
)
def test_mistakes_are_one_message(folders: tuple[Path, Path], words: tuple[str, ...], message: str) -> None:
    assert mentions(refused("generate", folders[1], *words, *PROMPTS), message)


def test_entries_are_ignored_as_in_a_folder_with_weights(folders: tuple[Path, Path], stubbed: Any, tmp_path: Path) -> None:
    bare = edit(without_weights(folders[1], tmp_path / "dir"), speed=3)
    stubbed()
    assert mentions(refused("generate", bare, "--artefact", "model", *PROMPTS), "speed … GPT-2")
    assert tokens(bare, "--artefact", "model", "--ignore", "speed") == tokens(folders[0], *NUMPY)
    errors = refused("generate", bare, "--artefact", "model", "--ignore", "sped", *PROMPTS)
    assert mentions(errors, "sped … (nearest: speed)")


RUN = {"pt2": 6, "onnx": 6, "aoti": 6, "savedmodel": 6, "litert": 6, "stablehlo": 3}  # tokens: JAX compiles for every length


@pytest.mark.parametrize(
    ("kind", "family"),
    [conformance(kind, family) for kind in KINDS for family in ("gpt2", "mistral")],
)
def test_a_file_of_every_format_continues_as_its_checkpoint(kind: str, family: str, tmp_path: Path) -> None:
    """Mistral's layer rotates, and attends to three tokens."""
    for package in (*KINDS[kind].needs, *exporting.WRITERS[kind][1]):
        pytest.importorskip(package)
    folder, suffix = tmp_path / "whole", KINDS[kind].suffix
    folder.mkdir()
    if family == "gpt2":
        gpt2(folder, 5, n_layer=1)
    else:
        modern(folder, 5, "MistralForCausalLM", num_hidden_layers=1, sliding_window=3)
    file = tmp_path / f"model{suffix}"
    dtype = "float32" if kind == "litert" else "float64"
    exporting.export(folder, kind, file, dtype)
    bare = without_weights(folder, tmp_path / "bare")
    for words in SEARCHES.values():
        found = tokens(bare, "--artefact", file, *("--allow-code",) * (kind == "aoti"), *words, most=RUN[kind])
        assert found == tokens(folder, "--backend", "numpy", "--dtype", dtype, *words, most=RUN[kind])
    if kind == "onnx":
        exporting.beside(file, "step").write_bytes(file.read_bytes())
        assert "model.step.onnx does not match" in refused("generate", bare, "--artefact", file, *PROMPTS)


@pytest.mark.conformance
def test_a_model_that_others_exported_with_a_cache_continues_as_transformers(tmp_path: Path) -> None:
    for package in ("torch", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    import torch

    model, file = modern(tmp_path, 5, num_hidden_layers=1), tmp_path / "past.onnx"
    export_with_cache(model, file)
    tokenizer = Tokenizer(tmp_path, model.config.vocab_size, {"model_type": "llama"})
    bare = without_weights(tmp_path, tmp_path / "bare")
    for options in ({}, {"num_beams": 3}, {"repetition_penalty": 1.5}):
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
        for found, prompt in zip(tokens(bare, "--artefact", file, *words, most=9), PROMPTS[1::2], strict=True):
            ids = torch.tensor([tokenizer.prompt(prompt)])
            wanted = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, max_new_tokens=9, **options)
            assert found == wanted[0, ids.shape[1] :].tolist()
