"""What the README says is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent
README = (HOUSE / "README.md").read_text()


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
    for command in re.findall(r"rosettaformer (doctor|check|convert|inspect)", README):
        text = subprocess.run([sys.executable, "-m", "rosettaformer", command, "--help"], capture_output=True, text=True, timeout=60).stdout
        assert text.startswith("Usage"), command
    known = "".join(
        subprocess.run([sys.executable, "-m", "rosettaformer", name, "--help"], capture_output=True, text=True, timeout=60).stdout
        for name in ("doctor", "check", "convert", "inspect")
    )
    assert [option for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", README) if option not in known] == []
