"""What the README says is so."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rosettaformer.cli import COMMANDS

HOUSE = Path(__file__).resolve().parent.parent
README = (HOUSE / "README.md").read_text()
CI = (HOUSE / "docs" / "ci.md").read_text()
CODE = "\n".join(re.findall(r"`[^`\n]+`|^    .*$", README + CI, re.MULTILINE))


def test_its_program_runs_and_the_port_agrees_with_the_truth() -> None:
    pytest.importorskip("torch")
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert program
    result = subprocess.run([sys.executable, "-c", program[1]], cwd=HOUSE, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert 0 < float(result.stdout) < 1e-5


def test_every_file_that_it_links_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 40
    assert [link for link in links if not (HOUSE / link).exists()] == []


def test_every_option_and_command_that_it_names_exists() -> None:
    texts = {name: _help(name) for name in COMMANDS}
    assert {name for name, text in texts.items() if not text.startswith("Usage")} == set()
    assert set(re.findall(r"rosettaformer ([a-z-]+)", CODE)) <= set(COMMANDS)
    known = "".join(texts.values())
    assert [option for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", README + CI) if option not in known] == []


def _help(command: str) -> str:
    arguments = [sys.executable, "-m", "rosettaformer", command, "--help"]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60).stdout


def test_its_pytest_example_runs_with_its_deviations_file(tmp_path: Path) -> None:
    example = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "parametrize_with_cases" in block)
    deviations = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    assert deviations
    (tmp_path / "test_port.py").write_text(example)
    (tmp_path / "deviations.toml").write_text(deviations[1])
    shutil.copy(HOUSE / "tests" / "ports" / "numpy_function.py", tmp_path / "my_port.py")
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "layer_norm and float64"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # those are of this run
    result = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert re.search(r"^\d+ passed", result.stdout.splitlines()[-1]), result.stdout
