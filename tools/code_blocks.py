"""The examples of the documents: their blocks of code, and how their commands are run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["DECLARED", "HOUSE", "INSTALL", "Block", "blocks", "declared", "lines", "ran", "run"]

HOUSE = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
INSTALL = "pip install -c constraints.txt -e '.[all-cpu,dev]'"
# What is said to install, and what runs every test, is compared with what the project declares instead of being run.
DECLARED = ("make check", "make test", "python -m venv .venv && . .venv/bin/activate", INSTALL, "pytest")


def declared(line: str) -> bool:
    """Whether a line installs something, or runs every test."""
    return line in DECLARED or line.startswith(("pip install ", "git clone "))


class Block(NamedTuple):
    """A block of code: in which section ("" before the first), in which language (indented lines are of the shell), and what it says."""

    section: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a document, in their order."""
    found = []
    for section in re.split(r"^##+ ", f"\n{page.read_text()}", flags=re.MULTILINE):
        title, _, text = section.partition("\n")
        for language, fenced, indented in BLOCK.findall(text):
            found.append(Block(title, "sh" if indented else language or "output", indented or fenced))
    return found


def lines(block: Block) -> list[str]:
    """Returns the commands of a block without their comments; of a console, without what they print. Continued lines are joined."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    if block.language == "console":
        joined = "\n".join(re.findall(r"^\$ (.*)$", joined, re.MULTILINE))
    return [re.sub(r"\s+#.*", "", line).strip() for line in joined.splitlines() if line.strip()]


def ran(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a line of the shell; in a folder that is a copy of the project, the commands of the copy."""
    binaries = folder / ".bin"
    binaries.mkdir(exist_ok=True)
    for name, module in (("python", ""), ("rosettaformer", "-m rosettaformer")):
        script = binaries / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        script.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # those are of this run
    environment |= {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(folder if (folder / "rosettaformer").is_dir() else HOUSE)}
    return subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)


def run(line: str, folder: Path, code: int = 0) -> str:
    """What a line of the shell prints, which must end with this exit code."""
    result = ran(line, folder)
    assert result.returncode == code, f"{line}\n{result.stdout}{result.stderr}"
    return result.stdout
