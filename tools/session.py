"""Replays the console sessions of docs/porting.md and docs/like.md.

Run it with `make evidence STEP=session`.
"""

import re
import sys
import tempfile
from pathlib import Path

from code_blocks import ran
from evidence import HOUSE, stamped, write

__all__ = ["CONSOLE", "prepared", "printed", "replayed"]

PAGES = {"docs/porting.md": "", "docs/like.md": " --limit 900"}  # page -> arguments added to each command, for a busy machine
CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
FILE = re.compile(r"^```python\n# (my_\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def printed(line: str, folder: Path) -> str:
    """Returns the output of a shell command, whatever its exit code, without spaces at the ends of lines."""
    return "".join(f"{text.rstrip()}\n" for text in ran(line, folder).stdout.splitlines())


def prepared(page: str, folder: Path) -> list[str]:
    """Writes the files of a page and returns the commands of its sessions."""
    (folder / "tests").symlink_to(HOUSE / "tests")
    for name, text in FILE.findall(page):
        (folder / name).write_text(text)
    return [line for block in CONSOLE.findall(page) for line in COMMAND.findall(block)]


def replayed(page: str, folder: Path, more: str) -> str:
    """Returns the page with new output of its commands."""
    prepared(page, folder)
    return CONSOLE.sub(lambda block: "".join(f"$ {line}\n{printed(line + more, folder)}" for line in COMMAND.findall(block[0])), page)


if __name__ == "__main__":
    for name, options in PAGES.items():
        with tempfile.TemporaryDirectory() as place:
            write(Path(sys.argv[1]), name, stamped(replayed((HOUSE / name).read_text(), Path(place), options), "session"))
