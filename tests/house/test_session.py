"""The session of the README: what it prints is what its commands print. `python tests/house/test_session.py` records it anew."""

import re
import sys
import tempfile
from pathlib import Path

import pytest
from test_readme import HOUSE, run

PAGE = HOUSE / "README.md"
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
    """The page with what its commands print now."""
    for name, text in FILE.findall(page):
        (folder / name).write_text(text)

    def again(block: re.Match[str]) -> str:
        return "".join(f"$ {line}\n{printed(line, folder)}" for line, _ in steps(block[0]))

    return CONSOLE.sub(again, page)


@pytest.mark.second
def test_the_session_prints_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    page = PAGE.read_text()
    commands = [line.split()[:2] for block in CONSOLE.findall(page) for line, _ in steps(block)]
    assert [words[1] for words in commands if words[0] == "rosettaformer"] == ["new-port", "diagnose", "check"]
    assert masked(replayed(page, tmp_path)) == masked(page)


def test_the_session_goes_from_red_to_green() -> None:
    first, *_, last = [shown for block in CONSOLE.findall(PAGE.read_text()) for _, shown in steps(block)]
    assert "differs" in first and "FAIL" in first
    assert "all conform" in last and "FAIL" not in last


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        PAGE.write_text(replayed(PAGE.read_text(), Path(place)))
    sys.exit()
