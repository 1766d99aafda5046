"""`new-port`: every template runs and conforms immediately, and one incorrect line in it is found."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from expectations import suite
from invoke import invoke, refused
from kinds import conformance
from messages import mentions

from rosettaformer.commands.new_port import KINDS
from rosettaformer.judge import runner

NEEDS = {"torch": "torch", "keras": "keras", "flax": "flax"}
WRONG = {
    "numpy": ('x.dtype.type(case.config.epsilon)', "0"),
    "command": ('x.dtype.type(config["epsilon"])', "0"),
    "torch": ("LayerNorm(config.model_width, config.epsilon)", "LayerNorm(config.model_width, 1e-3)"),
    "keras": ("epsilon=config.epsilon", "epsilon=1e-3"),
    "flax": ("epsilon=config.epsilon", "epsilon=1e-3"),
}  # fmt: skip
LAYER_NORM = [case for case in suite() if case.id in ("layer_norm/small_variance", "layer_norm/large_mean")]


OF_COMPONENTS = [kind for kind in KINDS if kind != "like"]  # tests/judge/test_like_options.py covers the template of a whole model
TEMPLATES = [conformance(kind) if kind in ("torch", "keras", "flax") else kind for kind in OF_COMPONENTS]


def _recommended(text: str) -> list[list[str]]:
    """Returns the rosettaformer commands in a text, as arguments, each once."""
    lines = re.findall(r"^ *rosettaformer (.*?)(?:   .*)?$", text, re.MULTILINE)
    return [shlex.split(line) for line in dict.fromkeys(lines)]


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_conforms_at_once_and_one_wrong_line_does_not(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    monkeypatch.chdir(tmp_path)
    found = invoke("new-port", kind, "my_port")
    assert found.code == 0, found
    name = "--command ./my_port.py" if kind == "command" else "my_port.py"
    for words in ("wrote my_port.py", "PASSED: ", f"rosettaformer check {name}", f"diagnose {name}"):
        assert mentions(found.out, words)
    assert [path.name for path in tmp_path.iterdir()] == ["my_port.py"]
    port = Path("my_port.py")
    assert os.access(port, os.X_OK) == (kind == "command")
    source = port.read_text()
    right, wrong = WRONG[kind]
    assert source.count(right) == 1
    port.write_text(source.replace(right, wrong))
    results = runner.run(LAYER_NORM, ["command:./my_port.py" if kind == "command" else "my_port.py"], ["float32"])
    assert "differs" in {result.status for result in results}, results


@pytest.mark.conformance
@pytest.mark.parametrize("kind", OF_COMPONENTS)
def test_every_command_that_a_template_recommends_conforms(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of new-port and the comments in the file; the whole check, gradients and every mode; and the active config line."""
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    monkeypatch.chdir(tmp_path)
    found = invoke("new-port", kind, "other_name", "--no-check")
    assert found.code == 0
    port = Path("other_name.py")
    named = ["--command", "./other_name.py"] if kind == "command" else ["other_name.py"]
    assert _recommended(found.out) == _recommended(port.read_text()) == [["check", *named], ["diagnose", *named]]
    few = ("--component", "layer_norm") if kind in ("keras", "flax") else ()  # these compile every case again
    for command in (["check", "--full", *few, *named], ["diagnose", *few, *named]):  # --full is check with every mode and gradient
        found = invoke(*command)
        assert found.code == 0, found
        assert re.search(r"PASSED: |nothing to explain", found.out)
    source = port.read_text()
    if kind != "command":
        assert source.count("\n# config = {") == 1
        port.write_text(source.replace("\n# config = {", "\nconfig = {"))
        assert invoke("check", *named, "--dtype", "float32").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("numpy", "a/b"), "my_port; got 'a/b'"),
        (("numpy", "class"), "my_port; got 'class'"),
        (("numpy", "json"), "'json'"),
        (("numpy", "mine"), "mine.py"),
        (("mxnet", "my_port"), "like; got 'mxnet'"),
    ],
)
def test_wrong_usage_is_one_message_and_writes_nothing(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("years of work")
    assert mentions(refused("new-port", *arguments, folder=tmp_path), message)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
    assert (tmp_path / "mine.py").read_text() == "years of work"


def test_a_missing_framework_is_said_with_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "without" / "torch").mkdir(parents=True)
    (tmp_path / "without" / "torch" / "__init__.py").write_text("raise ModuleNotFoundError('not installed', name='torch')")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "without"), *sys.path])  # the path that the port's process will have
    found = invoke("new-port", "torch", "my_port", folder=tmp_path)
    assert (found.code, "[torch]'" in found.out) == (3, True), found
    assert (tmp_path / "my_port.py").exists()
