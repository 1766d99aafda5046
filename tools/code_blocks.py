"""The code blocks of documents, and how to run their commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HOUSE = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
INSTALL = "pip install -c constraints.txt -e '.[all-cpu,dev]'"
# Install commands and whole test runs are not executed, but compared with the project's declarations.
DECLARED = ("make check", "make test", "python -m venv .venv && . .venv/bin/activate", INSTALL, "pytest")


def declared(line: str) -> bool:
    """Whether a line installs something or runs all tests."""
    return line in DECLARED or line.startswith(("pip install ", "git clone "))


class Block(NamedTuple):
    """A code block: its section ("" before the first), language ("sh" if indented), and text."""

    section: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Returns a document's blocks, in order."""
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
    """Runs a shell line. In a copy of the project, it runs the copy's commands."""
    binaries = folder / ".bin"
    binaries.mkdir(exist_ok=True)
    for name, module in (("python", ""), ("rosettaformer", "-m rosettaformer")):
        script = binaries / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        script.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # options of this test run
    environment |= {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(folder if (folder / "rosettaformer").is_dir() else HOUSE)}
    return subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)


def run(line: str, folder: Path, code: int = 0) -> str:
    """Returns the output of a shell line, which must end with this exit code."""
    result = ran(line, folder)
    assert result.returncode == code, f"{line}\n{result.stdout}{result.stderr}"
    return result.stdout
