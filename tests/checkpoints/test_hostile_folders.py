"""Malicious files: archives that inflate, huge numbers, foreign tensors, advice to run code."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke
from model_folders import edit

from rosettaformer import cli
from rosettaformer.common import archives
from rosettaformer.common.processes import message
from rosettaformer.comparison.engine import declared_inputs
from rosettaformer.files.checkpoints import CheckpointError, pickled
from rosettaformer.files.checkpoints.hugging_face import new, view


def test_an_archive_that_inflates_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "load", lambda *arguments, **named: pytest.fail("it is read"))
    path, size = tmp_path / "pytorch_model.bin", 10_000_000
    members = {"data.pkl": b"\x80\x02}q\x00.", "version": b"3\n", "data/0": bytes(size)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"archive/{name}", content)
    assert path.stat().st_size < size / 100
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
    with pytest.raises(CheckpointError) as caught:
        view(edit(tmp_path / "folder", model_type="gemma2"))
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
    with pytest.raises(CheckpointError) as caught:
        view(edit(tmp_path / "folder", **EXTREME[name]))
    assert all(problem.startswith("config.json: ") for problem in caught.value.problems)


def test_a_warning_shows_no_place_in_our_source(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    text = [RuntimeWarning("overflow"), RuntimeWarning, "our_source.py", 1]
    monkeypatch.setattr(cli.cli, "main", lambda *arguments, **named: shown.append(warnings.formatwarning(*text)))
    before = warnings.formatwarning
    with pytest.raises(SystemExit):
        cli.main([])
    assert "overflow" in shown[0] and "our_source" not in shown[0] and warnings.formatwarning is before
