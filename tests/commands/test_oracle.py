"""`rosettaformer oracle`: classes of two versions of transformers conform, and a class that computes something else is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from invoke import invoke, refused
from kinds import every
from published_pairs import FLAX

from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge import oracle, templates
from rosettaformer.judge.status import Status

pytest.importorskip("transformers")
OLDER = {"": "5", str(FLAX): "4"}  # folder of a version, before the installed packages -> its first number
# families that version 4 computes equally from the config.json of version 5, without rope_parameters
EQUAL = ("gpt2", "bert", "opt", "bart", "codegen")


@pytest.mark.parametrize("folder", OLDER)
@pytest.mark.parametrize("family", every(len(EQUAL), EQUAL))
def test_a_class_of_two_versions_conforms(folder: str, family: str) -> None:
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "rosettaformer", "oracle", family]
    found = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=900)
    assert found.returncode == 0, found.stdout + found.stderr
    first, *told = found.stdout.splitlines()
    assert OLDER[folder] == first.split()[1].split(".")[0]
    assert len(told) == 1


@pytest.mark.conformance
@pytest.mark.parametrize("family", new.names())
def test_the_installed_class_of_every_family_conforms(family: str) -> None:
    assert oracle.judged(family).status == Status.PASS


@pytest.mark.conformance
def test_a_class_that_computes_something_else_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (templates.TEMPLATES / "like_port.py").read_text()
    (tmp_path / "like_port.py").write_text(
        text.replace("from_pretrained(folder, dtype", "from_pretrained(folder, activation_function='relu', dtype")
    )
    monkeypatch.setattr(oracle, "TEMPLATES", tmp_path)
    found = oracle.judged("gpt2")
    assert found.status == Status.DIFFERS
    assert "FFN" in found.causes[0] or "activation" in found.causes[0]
    monkeypatch.setattr(oracle, "judged", lambda family: found)
    assert invoke("oracle", "gpt2").code == 1


def test_classes_that_this_version_lacks_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new, "architecture", lambda family: "NoSuchForCausalLM")
    assert oracle.judged("gpt2").status == Status.MISSING
    assert invoke("oracle", "gpt2").code == 0


def test_an_unknown_family_is_refused() -> None:
    assert "gpt2" in refused("oracle", "gpt9")
