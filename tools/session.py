"""Replays the console sessions of docs/porting.md and docs/like.md.

python tools/session.py       # records what their commands print
"""

import re
import tempfile
from pathlib import Path

from documents import stamped

from examples import HOUSE, run

__all__ = ["CONSOLE", "LIKE", "PAGE", "masked", "printed", "replayed", "steps"]

PAGE = HOUSE / "docs" / "porting.md"
LIKE = HOUSE / "docs" / "like.md"
LONGER = " --limit 900"  # on a busy machine
CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```python\n# (my_(?:model|layer)\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]


def printed(line: str, folder: Path) -> str:
    """What a line of the shell prints, whatever its exit code, without what pads its lines."""
    return "".join(f"{text.rstrip()}\n" for text in run(f"{line}; true", folder).splitlines())


def masked(text: str) -> list[str]:
    """The lines with one sign for every number, which vary with the machine, and without what only their width changes."""
    numbers = re.sub(r"\b\d+(\.\d+)?(e[+-]?\d+)?\b(?! (compared|failed|not compared|cases))", "#", text)
    return [re.sub(r"─+", "─", re.sub(r" +", " ", line)).strip() for line in numbers.splitlines()]


def replayed(page: str, folder: Path, more: str = "") -> str:
    """The page with what its commands print, which are run with more words at their end."""
    (folder / "tests").symlink_to(HOUSE / "tests")
    for name, text in FILE.findall(page):
        (folder / name).write_text(text)

    def again(block: re.Match[str]) -> str:
        return "".join(f"$ {line}\n{printed(line + more, folder)}" for line, _ in steps(block[0]))

    return CONSOLE.sub(again, page)


if __name__ == "__main__":
    for path, options in ((PAGE, ""), (LIKE, LONGER)):
        with tempfile.TemporaryDirectory() as place:
            path.write_text(stamped(replayed(path.read_text(), Path(place), options)))
