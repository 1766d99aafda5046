"""`new-port`: every template runs at once and conforms, and one wrong line in it is seen."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rosettaformer.cli import main
from rosettaformer.commands.new_port import KINDS
from rosettaformer.conformance import runner
from rosettaformer.conformance.cases import all_cases

NEEDS = {"torch": "torch", "keras": "keras", "flax": "flax"}
WRONG = {
    "numpy": ('x.dtype.type(case.config.epsilon)', "0"),
    "command": ('x.dtype.type(config["epsilon"])', "0"),
    "torch": ("LayerNorm(config.model_width, config.epsilon)", "LayerNorm(config.model_width, 1e-3)"),
    "keras": ("epsilon=config.epsilon", "epsilon=1e-3"),
    "flax": ("epsilon=config.epsilon", "epsilon=1e-3"),
}  # fmt: skip
LAYER_NORM = [case for case in all_cases() if case.id in ("layer_norm/small_variance", "layer_norm/large_mean")]


PATIENT = {"torch": pytest.mark.slow, "keras": pytest.mark.exhaustive, "flax": pytest.mark.exhaustive}


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


def _new_port(*arguments: str) -> int:
    return _run("new-port", *arguments)


def _recommended(text: str) -> list[list[str]]:
    """The commands of rosettaformer that a text names, as their arguments, each once."""
    lines = re.findall(r"^ *rosettaformer (.*?)(?:   .*)?$", text, re.MULTILINE)
    return [shlex.split(line) for line in dict.fromkeys(lines)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_conforms_at_once_and_one_wrong_line_does_not(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    assert _new_port(kind, "my_port") == 0
    assert time.monotonic() - start < 60  # 15 s on a quiet machine
    text = capsys.readouterr().out
    name = "--command ./my_port.py" if kind == "command" else "my_port.py"
    for words in (
        "wrote my_port.py",
        "0 failed, 0 not compared: all conform",
        f"rosettaformer check {name}",
        f"rosettaformer diagnose {name}",
    ):
        assert words in text
    assert [path.name for path in tmp_path.iterdir()] == ["my_port.py"]
    port = Path("my_port.py")
    assert os.access(port, os.X_OK) == (kind == "command")
    source = port.read_text()
    right, wrong = WRONG[kind]
    assert source.count(right) == 1
    port.write_text(source.replace(right, wrong))
    results = runner.run(LAYER_NORM, ["command:./my_port.py" if kind == "command" else "my_port.py"], ["float32"])
    assert "differs" in {result.status for result in results}, results


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=PATIENT.get(kind, ())) for kind in KINDS])
def test_every_command_that_a_template_recommends_conforms(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What new-port prints and what the file says of itself; the whole check, gradients and every mode; and the config line in use."""
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    monkeypatch.chdir(tmp_path)
    assert _new_port(kind, "other_name", "--no-check") == 0
    port = Path("other_name.py")
    commands = _recommended(capsys.readouterr().out)
    named = ["--command", "./other_name.py"] if kind == "command" else ["other_name.py"]
    assert commands == _recommended(port.read_text()) == [["check", *named], ["diagnose", *named]]
    for command in (["check", "--full", *named], commands[1]):  # --full is check with every mode and gradient besides
        code = _run(*command)
        said = capsys.readouterr().out
        assert code == 0, said
        assert re.search(r": all conform|: conforms except \d+ single outputs that are not comparable|nothing to explain", said)
    source = port.read_text()
    if kind != "command":
        assert source.count("\n# config = {") == 1
        port.write_text(source.replace("\n# config = {", "\nconfig = {"))
        assert _run("check", *named) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("numpy", "a/b"), "the name of a port must be a Python name, such as my_port; got 'a/b'"),
        (("numpy", "class"), "the name of a port must be a Python name, such as my_port; got 'class'"),
        (("numpy", "json"), "the name of a port must not be that of an installed module; got 'json'"),
        (("numpy", "mine"), "mine.py exists, and is not overwritten"),
        (("mxnet", "my_port"), "must be one of torch, keras, flax, numpy, command; got 'mxnet'"),
    ],
)
def test_wrong_usage_is_one_message_and_writes_nothing(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("years of work")
    assert _new_port(*arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
    assert Path("mine.py").read_text() == "years of work"


def test_no_check_only_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert _new_port("torch", "my_port", "--no-check") == 0
    text = capsys.readouterr().out
    assert "conform" not in text
    assert "rosettaformer check my_port.py" in text
    compile(Path("my_port.py").read_text(), "my_port.py", "exec")


def test_a_missing_framework_is_said_with_the_install_line(tmp_path: Path) -> None:
    (tmp_path / "without" / "torch").mkdir(parents=True)
    (tmp_path / "without" / "torch" / "__init__.py").write_text("raise ModuleNotFoundError('not installed', name='torch')")
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'without')!r}); from rosettaformer.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", script, "new-port", "torch", "my_port"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 3, result.stdout + result.stderr
    assert "not checked: the framework is missing: pip install -e '.[torch]'" in result.stdout
    assert (tmp_path / "my_port.py").exists()
