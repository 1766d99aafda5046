"""Files that would do harm: archives that inflate, entries that no model has, tensors of another family, advice to run code."""

import contextlib
import json
import random
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import Forks
from invoke import invoke
from kinds import conformance
from model_folders import byte_pairs

from rosettaformer import archives, cli
from rosettaformer.checkpoints import CheckpointError, pickled
from rosettaformer.checkpoints.hugging_face import new, view
from rosettaformer.comparison.running import declared_inputs
from rosettaformer.processes import message

DEEP: Any = 1
for _ in range(500):
    DEEP = [DEEP]
VALUES = (0, -1, 1, 1e300, 1e-300, float("nan"), float("inf"), 10**30, 2**31, [], {}, "x", None, True, DEEP, [1, 2], 3.5)


def inflating(path: Path, size: int, **members: bytes) -> Path:
    """A zip archive of 1 % of the bytes that its members say."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
        archive.writestr("archive/data/0", bytes(size))
    assert path.stat().st_size < size / 100
    return path


def test_an_archive_that_inflates_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "load", lambda *arguments, **named: pytest.fail("it is read"))
    path = inflating(tmp_path / "pytorch_model.bin", 10_000_000, archive__data__pkl=b"\x80\x02}q\x00.", archive__version=b"3\n")
    with pytest.raises(CheckpointError) as caught:
        pickled.read(path)
    assert len(caught.value.problems) == 1
    np.savez_compressed(tmp_path / "small.npz", x=np.zeros(1_000_000))
    archives.require_at_most(tmp_path / "small.npz", 9_000_000)
    monkeypatch.setattr(declared_inputs, "LARGEST", 1_000_000)
    monkeypatch.setattr(np, "load", lambda *arguments, **named: pytest.fail("it is read"))
    with pytest.raises(ValueError, match=r"small\.npz"):
        declared_inputs.read(tmp_path / "small.npz")


def test_a_tensor_of_more_elements_than_it_stores_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(1).expand(1 << 40), "b": torch.ones(2)}, tmp_path / "a.bin")
    with pytest.raises(CheckpointError) as caught:
        pickled.read(tmp_path / "a.bin")
    assert len(caught.value.problems) == 1 and caught.value.problems[0].startswith("a ")


ADVICE = {
    "Cannot use ``weights_only=True`` with TorchScript archives. In PyTorch 2.6 the default changed. Re-running `torch.load` with "
    "`weights_only` set to `False` will likely succeed. Bad file.": "In PyTorch 2.6 the default changed. Bad file.",
    "Loading it runs code; please pass the argument `trust_remote_code=True` to allow custom code to be run.": "Loading it runs code;",
    "Object arrays cannot be loaded when allow_pickle=False": "",
    "Unknown layer 'a'. Pass safe_mode=False, or call keras.config.enable_unsafe_deserialization().": "Unknown layer 'a'.",
    "plain": "plain",
}


@pytest.mark.parametrize("text", ADVICE)
def test_advice_to_run_code_is_not_quoted(text: str) -> None:
    shown = message(ValueError(text))
    assert shown == ADVICE[text]
    assert not any(word in shown for word in ("weights_only", "trust_remote_code", "allow_pickle", "safe_mode", "unsafe_des"))


@pytest.mark.parametrize("content", ["script", "code"])
def test_what_torch_advises_of_a_file_is_not_quoted(content: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.bin"
    if content == "script":
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    else:
        path.write_bytes(b"\x80\x02cos\nsystem\nq\x00X\x01\x00\x00\x00aq\x01\x85q\x02Rq\x03.")
    found = invoke("inspect", path)
    assert found.code == 2 and found.err.count("Error: ") == 1
    assert "weights_only" not in found.err and "trust" not in found.err, found.err


def test_tensors_of_another_family_are_told_before_entries_and_without_advice(tmp_path: Path) -> None:
    new.write("llama", tmp_path / "folder")
    file = tmp_path / "folder" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "gemma2"}))
    with pytest.raises(CheckpointError) as caught:
        view(tmp_path / "folder")
    problems = caught.value.problems
    assert "pre_feedforward_layernorm.weight" in problems[0] and len(problems) > 1
    assert not any("ignor" in problem for problem in problems)


EXTREME: dict[str, dict[str, Any]] = {
    "a factor": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 1e300}},
    "a small factor": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 1e-300}},
    "a base": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e300}},
    "a base of which no logarithm divides": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0, "factor": 4.0}},
    "an epsilon": {"rms_norm_eps": 1e300},
}


@pytest.mark.parametrize("name", EXTREME)
def test_a_number_beyond_float32_is_a_problem_of_its_entry(name: str, tmp_path: Path) -> None:
    new.write("llama", tmp_path / "folder")
    file = tmp_path / "folder" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | EXTREME[name]))
    with pytest.raises(CheckpointError) as caught:
        view(tmp_path / "folder")
    assert all(problem.startswith("config.json: ") for problem in caught.value.problems)


def test_a_warning_shows_no_place_in_our_source(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    text = [RuntimeWarning("overflow"), RuntimeWarning, "our_source.py", 1]
    monkeypatch.setattr(cli.cli, "main", lambda *arguments, **named: shown.append(warnings.formatwarning(*text)))
    before = warnings.formatwarning
    with pytest.raises(SystemExit):
        cli.main([])
    assert "overflow" in shown[0] and "our_source" not in shown[0] and warnings.formatwarning is before


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small folders with tokenizers, by family."""
    root = tmp_path_factory.mktemp("bases")
    size, _ = byte_pairs(root)
    for family in FAMILIES:
        new.write(family, root / family, settings={"vocab_size": size})
        shutil.copy(root / "tokenizer.json", root / family)
    return {family: root / family for family in FAMILIES}


FAMILIES = ("llama", "gemma2", "bert")


def places(entries: Mapping[str, Any], outer: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in entries.items():
        yield (*outer, name)
        if isinstance(value, dict):
            yield from places(value, (*outer, name))


def survive(family: str, seed: int, base: Path, copy: Path, command: Forks) -> None:
    """One value of no model in a folder, and what reads it: one message at most, without a place in our source, in time and memory."""
    rng = random.Random(f"{family} {seed}")
    shutil.copytree(base, copy)
    file = copy / rng.choice(["config.json", "config.json", "config.json", "generation_config.json"])
    entries = json.loads(file.read_text())
    *outer, last = rng.choice([*places(entries)])
    inner = entries
    for name in outer:
        inner = inner[name]
    inner[last] = value = rng.choice(VALUES)
    file.write_text(json.dumps(entries))
    use = ("embed", copy) if family == "bert" else ("generate", copy, "--max-new-tokens", 2)
    for line in (("inspect", copy), ("convert", copy, copy / "out.safetensors"), (*use, "--backend", "numpy")):
        found = command.run(*line, stdin=b"the fox\n")
        found.assert_modest()
        assert found.code in (0, 1, 2) and found.err.count("Error: ") == (found.code == 2), (last, str(value)[:40], line, found)
        assert ".py:" not in found.err, (last, str(value)[:40], line, found)


@pytest.mark.parametrize("family", ["llama", conformance("gemma2"), conformance("bert")])
def test_an_entry_that_no_model_has_is_one_message(family: str, bases: dict[str, Path], tmp_path: Path, command: Forks) -> None:
    survive(family, 0, bases[family], tmp_path / "copy", command)


@pytest.mark.conformance
@pytest.mark.parametrize("family", FAMILIES)
def test_entries_that_no_model_has_are_one_message(family: str, bases: dict[str, Path], tmp_path: Path, command: Forks) -> None:
    for seed in range(40):
        survive(family, seed, bases[family], tmp_path / "copy", command)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(tmp_path / "copy")
