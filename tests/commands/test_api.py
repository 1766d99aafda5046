"""The functions of the package: the commands' results as data for notebooks and CI."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from environments import HOUSE
from invoke import invoke

import rosettaformer

PORT = """
import numpy as np

def softmax(case):  # over the wrong axis, and without a mask
    power = np.exp(case.inputs["logits"] - case.inputs["logits"].max())
    return power / power.sum(axis=0)
"""
MODEL = """
import torch

def model(bias=True):
    return torch.nn.Sequential(torch.nn.Linear(4, 5, bias=bias), torch.nn.{activation}(), torch.nn.Linear(5, 3))
"""
INPUT = "x: b=2 d=4 float32"


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text(PORT)
    return "wrong.py"


def test_check_gives_the_results_that_the_command_writes(wrong: str) -> None:
    chosen = {"components": ["softmax"], "dtypes": ["float64"]}
    summary = rosettaformer.check(wrong, **chosen)
    found = invoke("check", wrong, "--component", "softmax", "--dtype", "float64", "--json", "-")
    said = json.loads(found.out)
    assert not summary.conforms and found.code == 1 and "differs" in {result.status for result in summary.failed}
    assert {(result.component, result.dtype) for result in summary.results} == {("softmax", "float64")}
    untimed = [[{**row, "seconds": 0} for row in rows["results"]] for rows in (summary.to_dict(), said)]
    assert untimed[0] == untimed[1]
    assert rosettaformer.check("torch", **chosen).conforms


def test_diagnose_gives_the_findings_that_the_command_writes(wrong: str) -> None:
    found = invoke("diagnose", wrong, "--component", "softmax", "--dtype", "float32", "--json", "-")
    diagnosis = rosettaformer.diagnose(wrong, components=["softmax"], dtypes=["float32"])
    assert {finding.dtype for finding in diagnosis.findings} == {"float32"} and json.loads(json.dumps(diagnosis.to_dict())) == json.loads(
        found.out
    )


@pytest.mark.usefixtures("sides_in_process")
def test_compare_gives_the_report_that_the_command_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, activation in (("one", "ReLU"), ("other", "GELU")):
        Path(f"{name}.py").write_text(MODEL.format(activation=activation))
    found = rosettaformer.compare("one.py:model", "other.py:model", inputs=[INPUT])
    said = json.loads(invoke("compare", "one.py:model", "other.py:model", "--input", INPUT, "--json", "-").out)
    assert found.keys() == said.keys() and found["verdict"] == said["verdict"] == "differs"
    assert rosettaformer.compare("one.py:model", "one.py:model", inputs=[INPUT])["verdict"] == "equal"


def test_compare_takes_models_and_no_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rosettaformer.comparison.comparing.between", lambda *_: {})
    for name in "ab":
        (tmp_path / f"{name}.json").write_text("{}")
    with pytest.raises(ValueError):
        rosettaformer.compare(str(tmp_path / "a.json"), str(tmp_path / "b.json"))


@pytest.mark.parametrize("name", ["components", "dtypes", "devices", "modes"])
@pytest.mark.parametrize(("given", "said"), [(["softmx"], "softmx"), ("softmax", "list")])
def test_what_does_not_exist_and_a_text_in_the_place_of_a_list_are_refused(wrong: str, name: str, given: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rosettaformer.check(wrong, **{name: given})  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", [{"checkpoint": "folder"}, {"mode": "compiled"}, {"checkpoint": "folder", "like": "qwen3"}])
def test_a_checkpoint_is_of_exported_files_and_a_mode_of_the_port(wrong: str, choice: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        rosettaformer.diagnose(wrong, components=["softmax"], **choice)  # type: ignore[arg-type]


def test_a_port_that_does_not_start_is_a_result(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no')")
    summary = rosettaformer.check(str(tmp_path / "broken.py"), components=["softmax"])
    assert not summary.conforms and [result.status for result in summary.results] == ["not started"]


def test_importing_the_package_imports_none_of_them() -> None:
    script = "import rosettaformer, sys; print([name for name in sys.modules if name.startswith('rosettaformer.')])"
    found = subprocess.run([sys.executable, "-c", script], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]" and {*rosettaformer.__all__} <= {*dir(rosettaformer)}
