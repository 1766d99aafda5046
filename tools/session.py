"""Replays the console sessions of README.md, docs/porting.md and docs/like.md.

Run it with `make evidence STEP=session`.
"""

import re
import sys
import tempfile
from pathlib import Path

from code_blocks import ran
from evidence import HOUSE, stamped, write

PAGES = {
    "README.md": "",
    "docs/porting.md": "",
    "docs/like.md": " --limit 900",
}  # page -> words added to each command
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


def abridged(text: str, shown: str) -> str:
    """Returns the output with as many first and last lines as the page shows around a line `...`; all of it without that line."""
    first, rest, last = shown.partition("\n...\n")
    if not rest:
        return text
    lines, tail = text.splitlines(), len(last.splitlines())
    return "\n".join([*lines[: len(first.splitlines())], "...", *lines[len(lines) - tail :]]) + "\n"


def outputs(block: str) -> list[tuple[str, str]]:
    """Returns the commands of a session, each with the output that the page shows."""
    _, *found = COMMAND.split(block)
    return [(line, text.removeprefix("\n")) for line, text in zip(found[::2], found[1::2], strict=True)]


def replayed(page: str, folder: Path, more: str) -> str:
    """Returns the page with new output of its commands, abridged where it is."""
    prepared(page, folder)

    def again(block: re.Match[str]) -> str:
        return "".join(f"$ {line}\n{abridged(printed(line + more, folder), text)}" for line, text in outputs(block[0]))

    return CONSOLE.sub(again, page)


if __name__ == "__main__":
    for name, options in PAGES.items():
        with tempfile.TemporaryDirectory() as place:
            write(Path(sys.argv[1]), name, stamped(replayed((HOUSE / name).read_text(), Path(place), options), "session"))
