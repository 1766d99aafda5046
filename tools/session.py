"""Replays the console session of docs/porting.md.

python tools/session.py       # records what its commands print
"""

import re
import tempfile
from pathlib import Path

from documents import stamped
from examples import HOUSE, run

__all__ = ["CONSOLE", "PAGE", "masked", "printed", "replayed", "steps"]

PAGE = HOUSE / "docs" / "porting.md"
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


def replayed(page: str, folder: Path) -> str:
    """The page with what its commands print."""
    for name, text in FILE.findall(page):
        (folder / name).write_text(text)

    def again(block: re.Match[str]) -> str:
        return "".join(f"$ {line}\n{printed(line, folder)}" for line, _ in steps(block[0]))

    return CONSOLE.sub(again, page)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        PAGE.write_text(stamped(replayed(PAGE.read_text(), Path(place))))
